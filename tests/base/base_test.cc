#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/aligned.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "base/result.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("octavo-base-{}", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST(Result, ErrorNamesItsPartsAndSkipsEmptyOnes) {
  const Error error{.what = "no such tensor", .where = "a.safetensors", .remedy = "fetch it again"};
  EXPECT_EQ(error.message(), "no such tensor\n  where:    a.safetensors\n  remedy:   fetch it again");
}

Result<int> half(int n) {
  if (n % 2 != 0) return fail({.what = "odd"});
  return n / 2;
}
Result<int> quarter(int n) {
  OCTAVO_ASSIGN(const int once, half(n));
  OCTAVO_TRY(half(once));
  return once / 2;
}

TEST(Result, MacrosPassErrorsOn) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(3).error().what, "odd");
  EXPECT_EQ(quarter(6).error().what, "odd");
}

TEST(Check, AbortsAndPrintsValues) {
  EXPECT_DEATH(OCTAVO_CHECK(1 == 2, "{} is not {}", 1, 2), "1 == 2: 1 is not 2");
}

TEST(Aligned, IsZeroAndAligned) {
  for (const size_t size : {size_t{1}, size_t{100}, size_t{1} << 21}) {
    AlignedBytes bytes(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0u);
    for (size_t i = 0; i < size + 4096; i += 511) EXPECT_EQ(bytes.data()[i], std::byte{0});
  }
}

TEST_F(Files, MapsWhatWasWritten) {
  ASSERT_TRUE(write_text_file(folder_ / "a", "hello").has_value());
  EXPECT_EQ(read_text_file(folder_ / "a").value(), "hello");
  ASSERT_TRUE(write_text_file(folder_ / "empty", "").has_value());
  EXPECT_EQ(read_text_file(folder_ / "empty").value(), "");
  EXPECT_EQ(read_text_file(folder_ / "a", 3).error().what, "file is too large");
  EXPECT_FALSE(MappedFile::open(folder_ / "missing").has_value());
  EXPECT_FALSE(MappedFile::open(folder_).has_value());
}

TEST_F(Files, NothingAppearsWithoutCommit) {
  {
    auto writer = AtomicFileWriter::create(folder_ / "out");
    ASSERT_TRUE(writer.has_value());
    ASSERT_TRUE(writer->write(std::as_bytes(std::span("half", 4))).has_value());
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
  EXPECT_EQ(count(), 0u);
}

TEST_F(Files, AnOldFileStaysUntilTheNewOneIsComplete) {
  ASSERT_TRUE(write_text_file(folder_ / "out", "old").has_value());
  auto writer = AtomicFileWriter::create(folder_ / "out");
  ASSERT_TRUE(writer->write(std::as_bytes(std::span("....rest", 8))).has_value());
  ASSERT_TRUE(writer->write_at(0, std::as_bytes(std::span("new.", 4))).has_value());
  EXPECT_EQ(read_text_file(folder_ / "out").value(), "old");
  ASSERT_TRUE(writer->commit().has_value());
  EXPECT_EQ(read_text_file(folder_ / "out").value(), "new.rest");
  EXPECT_EQ(count(), 1u);
}

TEST(Files_, AFullDiskIsAnError) {
  auto writer = AtomicFileWriter::create("/dev/full/x");
  EXPECT_FALSE(writer.has_value());
}

TEST(Aligned, BlocksBesideOthersAreTheirOwn) {
  std::vector<AlignedBytes> blocks;
  for (const size_t size : {1u, 64u, 100'000u, 3'000'000u, 40'000'000u, 30'000'000u, 33'000'000u}) {
    blocks.push_back(AlignedBytes::beside_others(size));
    AlignedBytes& block = blocks.back();
    EXPECT_EQ(block.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 64, 0u);
    for (const size_t i : {size_t{0}, size / 2, size - 1}) EXPECT_EQ(block.data()[i], std::byte{0}) << size;
    std::memset(block.data(), static_cast<int>(blocks.size()), size);
  }
  blocks.erase(blocks.begin() + 1);  // its neighbours stay
  for (const AlignedBytes& block : blocks) {
    EXPECT_EQ(block.data()[0], block.data()[block.size() - 1]);
    EXPECT_NE(block.data()[0], std::byte{0});
  }
  EXPECT_TRUE(AlignedBytes::beside_others(0).empty());
}

TEST(Json_, RefusesWhatIsNotStrict) {
  EXPECT_TRUE(parse_json(R"({"a": [1, 2.5, "x", null, true]})", "t").has_value());
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 2})", "t").error().what, "JSON object has the same key twice");
  EXPECT_TRUE(parse_json(R"([{"a": 1}, {"a": 2}])", "t").has_value());
  EXPECT_EQ(parse_json(std::string(100000, '['), "t").error().what, "JSON is nested too deeply");
  EXPECT_TRUE(parse_json(R"(["[[[[[[[[[[", "\"[[["])", "t", {.max_depth = 2}).has_value());
  for (const char* bad : {"", "{", "[1,]", "nul", "\"\xff\"", "{\"a\" 1}", "[1] x"})
    EXPECT_FALSE(parse_json(bad, "t").has_value()) << bad;
  std::string wide = "{";
  for (int i = 0; i < 300'000; ++i) wide += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":[]";
  const Result<Json> parsed = parse_json(wide + "}", "t");
  ASSERT_TRUE(parsed.has_value()) << "and not after hours";
  EXPECT_EQ(parsed->size(), 300'000u);
  EXPECT_EQ(parsed->back(), Json::array());
  const std::string mixed = R"({"b":[1,-2,2.5,"x",null,true,{"c":{},"a":[[]]}],"a":18446744073709551615})";
  EXPECT_EQ(parse_json(mixed, "t")->dump(), mixed);
  EXPECT_EQ(parse_json("[1,2,3]", "t", {.max_bytes = 3}).error().what, "JSON text is too large");
}

TEST(Random_, SameSequenceEverywhere) {
  Random random(42);
  EXPECT_EQ(random.next(), 13679457532755275413ull);
  EXPECT_EQ(random.next(), 2949826092126892291ull);
  double sum = 0, squares = 0;
  for (int i = 0; i < 20000; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 20000, 0, 0.03);
  EXPECT_NEAR(squares / 20000, 1, 0.05);
}

}  // namespace
}  // namespace octavo
