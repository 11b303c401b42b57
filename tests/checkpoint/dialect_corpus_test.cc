// Replays the fuzzer's corpus of quantization_configs.
#include <gtest/gtest.h>

#include <filesystem>

#include "../../fuzz/target_quantization_config.h"
#include "base/file.h"

namespace octavo {
namespace {

TEST(DialectCorpus, EveryInputIsReadOrRefused) {
  int files = 0;
  const auto folder = std::filesystem::path(OCTAVO_TEST_DATA) / "../../fuzz/corpus/quantization_config";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const auto text = read_text_file(file.path());
    ASSERT_TRUE(text.has_value());
    SCOPED_TRACE(file.path().filename().string());
    fuzz::read_quantization_config(reinterpret_cast<const uint8_t*>(text->data()), text->size());
    ++files;
  }
  EXPECT_GT(files, 15);
}

}  // namespace
}  // namespace octavo
