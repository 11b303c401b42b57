// Replays the fuzzer's corpus of octavo_kv.json.
#include <gtest/gtest.h>

#include <filesystem>

#include "../../fuzz/target_kv_calibration.h"
#include "base/file.h"

namespace octavo {
namespace {

TEST(KvCalibrationCorpus, EveryInputIsReadOrRefused) {
  int files = 0;
  const auto folder = std::filesystem::path(OCTAVO_TEST_DATA) / "../../fuzz/corpus/kv_calibration";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const auto text = read_text_file(file.path());
    ASSERT_TRUE(text.has_value());
    SCOPED_TRACE(file.path().filename().string());
    fuzz::read_kv_calibration(reinterpret_cast<const uint8_t*>(text->data()), text->size());
    ++files;
  }
  EXPECT_GT(files, 15);
}

}  // namespace
}  // namespace octavo
