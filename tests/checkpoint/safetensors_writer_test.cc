// The streaming writer: layout and bytes of the reference implementation, nothing visible before commit().
#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>

#include "checkpoint/container_support.h"
#include "checkpoint/safetensors.h"

namespace octavo {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(SafetensorsWriter, BytesAreTheReferenceWriters) {
  const TestFolder folder;
  auto writer = SafetensorsWriter::create(folder / "m.safetensors", {{"b", ElementType::kE4m3, {2}},
                                                                     {"c", ElementType::kBf16, {1, 2}},
                                                                     {"a", ElementType::kBf16, {1}},
                                                                     {"z", ElementType::kF32, {}},
                                                                     {"none", ElementType::kF32, {0, 3}}});
  ASSERT_TRUE(writer) << writer.error().message();
  ASSERT_TRUE(writer->write("b", 0, bytes_of("B1")));
  ASSERT_TRUE(writer->write("c", 2, bytes_of("34")));
  ASSERT_TRUE(writer->write("c", 0, bytes_of("12")));
  ASSERT_TRUE(writer->write("a", 0, bytes_of("aa")));
  ASSERT_TRUE(writer->write("z", 0, bytes_of("zzzz")));
  EXPECT_FALSE(std::filesystem::exists(folder / "m.safetensors"));
  ASSERT_TRUE(writer->commit());
  std::string header =
      R"({"__metadata__":{"format":"pt"},"none":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},)"
      R"("z":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},)"
      R"("c":{"dtype":"BF16","shape":[1,2],"data_offsets":[6,10]},"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[10,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_bytes(folder / "m.safetensors"), safetensors_bytes(header, "zzzzaa1234B1"));
  EXPECT_TRUE(open_safetensors(folder.path()));
}

TEST(SafetensorsWriter, MissingBytesAreAnErrorAndLeaveNothing) {
  const TestFolder folder;
  {
    auto writer = SafetensorsWriter::create(folder / "m.safetensors", {{"x", ElementType::kUint8, {8}}});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->write("x", 0, bytes_of("012")));
    ASSERT_TRUE(writer->write("x", 4, bytes_of("4567")));
    const auto committed = writer->commit();
    ASSERT_FALSE(committed);
    EXPECT_NE(committed.error().message().find("tensor x"), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, PiecesMayComeInAnyOrder) {
  const TestFolder folder;
  auto writer = SafetensorsWriter::create(folder / "m.safetensors", {{"x", ElementType::kUint8, {10}}}, {});
  ASSERT_TRUE(writer);
  for (const size_t at : {8u, 0u, 4u, 6u, 2u}) ASSERT_TRUE(writer->write("x", at, bytes_of("ab")));
  ASSERT_TRUE(writer->commit());
  EXPECT_TRUE(read_bytes(folder / "m.safetensors").ends_with("ababababab"));
}

TEST(SafetensorsWriter, AByteWrittenTwiceOrOutsideIsTheCallersFault) {
  const TestFolder folder;
  auto writer = SafetensorsWriter::create(folder / "m.safetensors", {{"x", ElementType::kUint8, {4}}});
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write("x", 1, bytes_of("bc")));
  EXPECT_DEATH((void)writer->write("x", 0, bytes_of("ab")), "twice");
  EXPECT_DEATH((void)writer->write("x", 2, bytes_of("c")), "twice");
  EXPECT_DEATH((void)writer->write("x", 3, bytes_of("de")), "which has 4");
  EXPECT_DEATH((void)writer->write("y", 0, bytes_of("a")), "not announced");
}

TEST(SafetensorsWriter, WhatCannotBeWrittenIsRefused) {
  const TestFolder folder;
  const auto refused = [&](std::vector<TensorToWrite> tensors) {
    return !SafetensorsWriter::create(folder / "m.safetensors", std::move(tensors));
  };
  EXPECT_TRUE(refused({{"x", ElementType::kUint8, {1}}, {"x", ElementType::kUint8, {1}}}));
  EXPECT_TRUE(refused({{"__metadata__", ElementType::kUint8, {1}}}));
  EXPECT_TRUE(refused({{"x", ElementType::kInt4, {2}}}));
  EXPECT_TRUE(refused({{"x", ElementType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}}));
  EXPECT_TRUE(refused({{"\xFF", ElementType::kUint8, {1}}}));
  EXPECT_FALSE(SafetensorsWriter::create(folder / "no" / "m.safetensors", {}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace octavo
