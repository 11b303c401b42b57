// octavo_kv.json: what is written is read, and what does not fit is refused by name.
#include "checkpoint/kv_calibration.h"

#include "dialect_support.h"
#include "formats/tensor.h"
#include "support/kv_calibration_file.h"
#include "support/test_folder.h"

namespace octavo {
namespace {

class KvCalibrationFile : public testing::Test {
 protected:
  void SetUp() override {
    config_.num_kv_heads = 2;
    calibration_ = made_up_kv_calibration(config_);
    for (KvCalibration::Layer& layer : calibration_.layers) layer.k = "int8:channel", layer.v = "int8:static";
    calibration_.kv_cache = "int8:channel:static";
    text_ = kv_calibration_text(calibration_, config_);
  }
  Result<KvCalibration> read(const std::string& text) {
    folder_.write("octavo_kv.json", text);
    return read_kv_calibration(folder_ / "octavo_kv.json", config_);
  }
  // The file with one piece of text changed; the error names `named`.
  void expect_refused(const std::string& from, const std::string& to, const std::string& named) {
    std::string text = text_;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << " in " << text;
    text.replace(at, from.size(), to);
    const auto result = read(text);
    ASSERT_FALSE(result.has_value()) << from << " -> " << to;
    EXPECT_NE(result.error().message().find(named), std::string::npos) << result.error().message();
  }

  ModelConfig config_ = small_config();
  KvCalibration calibration_;
  std::string text_;
  TestFolder folder_;
};

TEST_F(KvCalibrationFile, WhatIsWrittenIsRead) {
  const auto result = read(text_);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(kv_calibration_text(*result, config_), text_);
  EXPECT_EQ(result->kv_cache, "int8:channel:static");
  ASSERT_EQ(result->layers.size(), calibration_.layers.size());
  EXPECT_EQ(result->layers[1].k_min, calibration_.layers[1].k_min);  // bit for bit
  EXPECT_EQ(result->layers[1].temperature, calibration_.layers[1].temperature);
}

TEST_F(KvCalibrationFile, WhatDoesNotFitIsRefused) {
  expect_refused("\"octavo_kv\": 1", "\"octavo_kv\": 2", "version 2");
  expect_refused("\"head_dim\": ", "\"head_dim\": 1", "another model");
  expect_refused("\"k\":\"int8:channel\"", "\"k\":\"int8:chanel\"", "option 'chanel'");
  expect_refused("\"v\":\"int8:static\"", "\"v\":\"int8:channel\"", "layer 0");
  expect_refused("\"k_range\":[", "\"k_range\":[1.0,", "3 values");
  expect_refused("\"k_range\":[", "\"k_range\":[null,", "k_range");
  expect_refused("\"v_range\":[", "\"v_range\":[-", "negative");
  expect_refused("\"k_max\":[", "\"k_max\":[-1e30,", "k_max");
  expect_refused("\"temperature\":", "\"temperature\":100", "temperature");
  expect_refused("\"layers\": [", "\"layers\": [1, ", "3 layers");
  expect_refused("\"layers\": [", "\"layer\": [", "layers");
  EXPECT_FALSE(read("[]").has_value());
  EXPECT_FALSE(read(text_.substr(0, text_.size() / 2)).has_value());
}

TEST_F(KvCalibrationFile, ScalesFillTheElementsRange) {
  const KvCalibration::Layer& layer = calibration_.layers[0];
  TensorFormat e4m3 = row_format(ElementType::kE4m3), int8 = row_format(ElementType::kInt8);
  EXPECT_EQ(calibration_.scales(0, true, e4m3, {})[1], scale_from_amax(layer.k_range[1], e4m3));
  EXPECT_EQ(calibration_.scales(0, false, int8, {.tensor_scale = true})[0],
            scale_from_amax(std::max(layer.v_range[0], layer.v_range[1]), int8));
  EXPECT_EQ(calibration_.scales(0, true, int8, {.channels = true}), std::vector<float>(2, 1.0f));
  const KvCalibration::Channels channels = calibration_.channels(0, int8);
  for (size_t c = 0; c < channels.scales.size(); ++c) {
    EXPECT_NEAR((layer.k_max[c] - channels.zeros[c]) / channels.scales[c], 127, 0.01);
    EXPECT_NEAR((layer.k_min[c] - channels.zeros[c]) / channels.scales[c], -127, 0.01);
  }
}

}  // namespace
}  // namespace octavo
