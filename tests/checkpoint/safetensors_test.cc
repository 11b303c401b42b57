// safetensors files: reading right ones, and refusing wrong ones quickly, with the file and the reason.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "checkpoint/container_support.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "file.safetensors");
}

// The error of a file, which must name the file and hold `reason`.
void expect_refused(const std::string& bytes, const std::string& reason) {
  const auto header = parse(bytes);
  ASSERT_FALSE(header) << "accepted, expected: " << reason;
  const std::string message = header.error().message();
  EXPECT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_NE(header.error().where.find("file.safetensors"), std::string::npos) << message;
}

std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, EmptyMapOfTheReferenceWriter) {
  const auto header = parse(safetensors_bytes("{}      "));
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_TRUE(header->tensors.empty());
}

TEST(Safetensors, HeaderWithMetadataEscapesAndOrder) {
  const auto header = parse(safetensors_bytes(
      R"( {"b\u00e9\n":{"shape":[],"data_offsets":[2,6],"dtype":"F32"}, "__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}} )" +
          std::string(1, '\n'),
      std::string(6, '\1')));
  ASSERT_FALSE(header) << "a header must begin with '{'";
  const auto good = parse(safetensors_bytes(
      R"({"b\u00e9\ud83d\ude00":{"shape":[],"data_offsets":[2,6],"dtype":"F32"}, "__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}  )",
      std::string(6, '\1')));
  ASSERT_TRUE(good) << good.error().message();
  ASSERT_EQ(good->tensors.size(), 2u);
  EXPECT_EQ(good->tensors[0].name, "a");
  EXPECT_EQ(good->tensors[0].element, ElementType::kBf16);
  EXPECT_EQ(good->tensors[1].name, "b\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(good->tensors[1].shape, Shape{});
  EXPECT_EQ(good->tensors[1].end - good->tensors[1].begin, 4u);
  EXPECT_EQ(good->metadata.at("format"), "pt");
}

TEST(Safetensors, ZeroSizeTensorsAreLegal) {
  EXPECT_TRUE(parse(safetensors_bytes(one_tensor("F32", "[0,128]", "[0,0]"))));
  EXPECT_TRUE(parse(safetensors_bytes(one_tensor("F4", "[3,0]", "[0,0]"))));
}

TEST(Safetensors, TypesThatOctavoDoesNotComputeWithAreListedButNotRead) {
  const auto header = parse(safetensors_bytes(one_tensor("C64", "[1]", "[0,8]"), std::string(8, '\0')));
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_FALSE(header->tensors[0].element);
}

TEST(Safetensors, HostileHeaders) {
  expect_refused("", "too short");  // (m)
  expect_refused(std::string(7, 'x'), "too short");
  expect_refused(std::string(8, '\xFF'), "too long");                       // (a)
  expect_refused(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), "100000001");  // (b)
  expect_refused(raw<uint64_t>(11) + "{}", "truncated");                    // (c)
  expect_refused(safetensors_bytes(one_tensor("F32", "[32,8]", "[0,65536]"), std::string(1024, 'x')),
                 "65536 bytes for F32 [32, 8]");                                                      // (d)
  expect_refused(safetensors_bytes(one_tensor("F32", "[4294967296,4294967296]", "[0,0]")), "shape");  // (e)
  expect_refused(safetensors_bytes(one_tensor("F32", "[-1]", "[0,0]")), "non-negative integer");      // (f)
  expect_refused(safetensors_bytes(one_tensor("F32", "[2]", "[8,0]"), std::string(8, 'x')),
                 "ends before it begins");  // (g)
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  expect_refused(safetensors_bytes(two("[0,4]", "[2,6]"), std::string(6, 'x')), "overlap");  // (h)
  expect_refused(safetensors_bytes(two("[0,4]", "[0,4]"), std::string(4, 'x')), "overlap");
  expect_refused(safetensors_bytes(two("[0,4]", "[6,10]"), std::string(10, 'x')), "hole");
  expect_refused(safetensors_bytes(two("[1,5]", "[5,9]"), std::string(9, 'x')), "hole");
  const std::string entry = R"("x":{"dtype":"U8","shape":[1],"data_offsets":)";
  expect_refused(safetensors_bytes("{" + entry + "[0,1]}," + entry + "[1,2]}}", "xy"), "twice");  // (i)
  expect_refused(safetensors_bytes("{\"\xC3\x28\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"),
                 "UTF-8");                                                                  // (j)
  expect_refused(safetensors_bytes(one_tensor("F33", "[1]", "[0,4]"), "abcd"), "F33");      // (k)
  expect_refused(safetensors_bytes("{\"x\":" + std::string(100000, '[')), "'{' expected");  // (l)
  expect_refused(safetensors_bytes(std::string(100000, '[')), "does not begin with '{'");
}

TEST(Safetensors, MoreFaultsOfHeaderAndLength) {
  expect_refused(safetensors_bytes(one_tensor("F32", "[2]", "[0,8]"), std::string(7, 'x')), "truncated");
  expect_refused(safetensors_bytes(one_tensor("F32", "[2]", "[0,8]"), std::string(9, 'x')), "no tensor owns");
  expect_refused(safetensors_bytes(one_tensor("F32", "[2]", "[0,4]"), std::string(4, 'x')), "expected: 8 bytes");
  expect_refused(safetensors_bytes(one_tensor("F4", "[3]", "[0,1]"), "x"), "shape");
  expect_refused(safetensors_bytes(one_tensor("F32", "[1.0]", "[0,4]"), "abcd"), "non-negative integer");
  expect_refused(safetensors_bytes(one_tensor("F32", "[01]", "[0,4]"), "abcd"), "leading zero");
  expect_refused(safetensors_bytes(one_tensor("F32", "[18446744073709551616]", "[0,4]"), "abcd"), "too large");
  expect_refused(safetensors_bytes(one_tensor("F32", "[9223372036854775808]", "[0,4]"), "abcd"), "too large");
  expect_refused(safetensors_bytes(one_tensor("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]")), "shape");
  expect_refused(safetensors_bytes(one_tensor("F32", "[1]", "[0]"), "abcd"), "two numbers");
  expect_refused(safetensors_bytes(one_tensor("F32", "[1]", "[0,4,8]"), "abcd"), "two numbers");
  expect_refused(safetensors_bytes(R"({"x":{"dtype":"U8","shape":[0]}})"), "missing");
  expect_refused(safetensors_bytes(R"({"x":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                 "unexpected key");
  expect_refused(safetensors_bytes(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1}})"),
                 "unexpected key");
  expect_refused(safetensors_bytes(R"({"__metadata__":{"a":"1","a":"2"}})"), "twice");
  expect_refused(safetensors_bytes(R"({"__metadata__":{"a":1}})"), "string expected");
  expect_refused(safetensors_bytes("{},"), "after the end");
  expect_refused(safetensors_bytes("{\"x\\ud800\":{}}"), "surrogate");
  expect_refused(safetensors_bytes(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},})"), "string expected");
}

std::string header_of_empty_tensors(size_t count) {
  std::string header = "{";
  for (size_t i = 0; i < count; ++i)
    header += fmt::format("{}\"t{}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", i == 0 ? "" : ",", i);
  return header + "}";
}

TEST(Safetensors, AsManyTensorsAsAFileMayHoldLoadQuickly) {
  const TestFolder folder;
  write_bytes(folder / "model.safetensors", safetensors_bytes(header_of_empty_tensors(kMaxSafetensorsTensors)));
  const std::clock_t start = std::clock();  // processor time: other programs do not count
  const auto reader = open_safetensors(folder.path());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_EQ((*reader)->entries().size(), kMaxSafetensorsTensors);
  EXPECT_NE((*reader)->find("t277777"), nullptr);
  EXPECT_LT(seconds, 20.0);  // 0.6 with optimization; a sanitizer build needs more
}

TEST(Safetensors, AMillionTensorsAreRefused) {
  const std::string header = header_of_empty_tensors(1'000'000);
  ASSERT_LT(header.size(), kMaxSafetensorsHeader);
  expect_refused(safetensors_bytes(header), "more than 300000 tensors");
}

class Shards : public ::testing::Test {
 protected:
  void shard(const std::string& file, const std::string& tensor, char value) {
    write_bytes(folder / file,
                safetensors_bytes(R"({")" + tensor + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                  std::string(2, value)));
  }
  void index(const std::string& text) { write_bytes(folder / "model.safetensors.index.json", text); }
  std::string error() {
    const auto reader = open_safetensors(folder.path());
    return reader ? "" : reader.error().message();
  }
  TestFolder folder;
};

TEST_F(Shards, TensorsAreFoundInTheirShardAndOtherFilesIgnored) {
  shard("model-00001-of-00002.safetensors", "b", 1);
  shard("model-00002-of-00002.safetensors", "a", 2);
  shard("consolidated.safetensors", "c", 3);
  index(R"({"weight_map":{"b":"model-00001-of-00002.safetensors","a":"model-00002-of-00002.safetensors"}})");
  const auto reader = open_safetensors(folder.path());
  ASSERT_TRUE(reader) << reader.error().message();
  ASSERT_EQ((*reader)->entries().size(), 2u);
  const TensorEntry* a = (*reader)->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ((*reader)->entries()[0].name, "a");
  EXPECT_EQ(a->file, "model-00002-of-00002.safetensors");
  std::vector<float> values(2);
  ASSERT_TRUE((*reader)->read_f32(*a, 0, 1, values));
  EXPECT_EQ(values, (std::vector<float>{2, 2}));
  EXPECT_EQ((*reader)->find("c"), nullptr);
  EXPECT_EQ((*reader)->find("aa"), nullptr);
}

TEST_F(Shards, TheIndexDecidesBetweenTwoShardsWithTheSameTensor) {
  shard("x.safetensors", "t", 1);
  write_bytes(
      folder / "y.safetensors",
      safetensors_bytes(
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          "\5\6"));
  index(R"({"metadata":{},"weight_map":{"t":"x.safetensors","u":"y.safetensors"}})");
  const auto reader = open_safetensors(folder.path());
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_EQ((*reader)->find("t")->file, "x.safetensors");
  index(R"({"weight_map":{"u":"y.safetensors","v":"x.safetensors"}})");
  EXPECT_NE(error().find("two shards hold the same tensor"), std::string::npos) << error();
}

TEST_F(Shards, WeightMapMayNotLeaveTheFolder) {
  for (const char* file : {"../../other/x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "", "..",
                           "a//../../b", "..\\\\x.safetensors", "x\\u0000.safetensors"}) {
    index(std::string(R"({"weight_map":{"t":")") + file + "\"}}");
    EXPECT_NE(error().find("outside of the model folder"), std::string::npos) << file << ": " << error();
    EXPECT_NE(error().find("tensor t"), std::string::npos) << error();
  }
}

TEST_F(Shards, FaultsOfTheIndex) {
  shard("x.safetensors", "t", 1);
  index(R"({"weight_map":{"t":"x.safetensors","u":"x.safetensors"}})");
  EXPECT_NE(error().find("tensor u"), std::string::npos) << error();
  index(R"({"weight_map":{"t":"y.safetensors"}})");
  EXPECT_NE(error().find("y.safetensors"), std::string::npos) << error();
  index(R"({"metadata":{}})");
  EXPECT_NE(error().find("no weight_map"), std::string::npos) << error();
  index(R"({"weight_map":{"t":"x.safetensors","t":"x.safetensors"}})");
  EXPECT_NE(error().find("twice"), std::string::npos) << error();
  index(R"({"metadata":)" + std::string(100000, '['));
  EXPECT_NE(error().find("nested too deeply"), std::string::npos) << error();
  index(R"({"metadata":{"a":[1,-2.5e3,true,null,{"b":"c"}]},"weight_map":{"t":"x.safetensors"}})");
  EXPECT_EQ(error(), "");
}

TEST_F(Shards, WithoutAnIndexTheFileMustBeClear) {
  EXPECT_NE(error().find("no weights"), std::string::npos);
  shard("a.safetensors", "t", 1);
  EXPECT_EQ(error(), "");
  shard("b.safetensors", "t", 1);
  EXPECT_NE(error().find("several safetensors files and no index"), std::string::npos);
  shard("model.safetensors", "t", 1);
  EXPECT_EQ(error(), "");
}

TEST(SafetensorsReader, ReadsEveryPlainTypeByRows) {
  const std::string header =
      R"({"i64":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"f32":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
      R"("bf16":{"dtype":"BF16","shape":[3,2],"data_offsets":[24,36]},"f16":{"dtype":"F16","shape":[2],"data_offsets":[36,40]},)"
      R"("e4m3":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[40,42]},"i8":{"dtype":"I8","shape":[],"data_offsets":[42,43]},)"
      R"("none":{"dtype":"F32","shape":[4,0],"data_offsets":[43,43]}})";
  std::string data = raw<int64_t>(-7);
  for (const float v : {1.5f, -2.0f, 3.25f, 0.0f}) data += raw(v);
  for (const uint16_t v : {0x3F80, 0xC000, 0x4040, 0x0000, 0x3DCD, 0x7F7F}) data += raw<uint16_t>(v);
  data += raw<uint16_t>(0x3C00) + raw<uint16_t>(0x0001) + "\x38\xFE" + "\x85";
  const TestFolder folder;
  write_bytes(folder / "one.safetensors", safetensors_bytes(header, data));
  const auto opened = open_safetensors(folder / "one.safetensors");
  ASSERT_TRUE(opened) << opened.error().message();
  const TensorReader& reader = **opened;
  const auto read = [&](const char* name, int64_t begin, int64_t end, size_t count) {
    std::vector<float> out(count);
    const auto done = reader.read_f32(*reader.find(name), begin, end, out);
    EXPECT_TRUE(done);
    return out;
  };
  EXPECT_EQ(read("i64", 0, 1, 1), std::vector<float>{-7});
  EXPECT_EQ(read("f32", 1, 2, 2), (std::vector<float>{3.25f, 0.0f}));
  EXPECT_EQ(read("bf16", 1, 3, 4), (std::vector<float>{3.0f, 0.0f, Bf16::decode(0x3DCD), Bf16::decode(0x7F7F)}));
  EXPECT_EQ(read("f16", 0, 1, 2), (std::vector<float>{1.0f, 5.9604645e-08f}));
  EXPECT_EQ(read("e4m3", 0, 1, 2), (std::vector<float>{1.0f, -448.0f}));
  EXPECT_EQ(read("i8", 0, 1, 1), std::vector<float>{-123});
  EXPECT_EQ(read("none", 0, 0, 0), std::vector<float>{});
  for (const TensorEntry& entry : reader.entries()) reader.forget(entry, 0, 1);  // what was read can be read again
  EXPECT_EQ(read("f32", 0, 1, 2), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_TRUE(std::is_sorted(reader.entries().begin(), reader.entries().end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
}

TEST(SafetensorsReader, NotAFile) {
  const auto missing = open_safetensors("no-such-file.safetensors");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find("no-such-file.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace octavo
