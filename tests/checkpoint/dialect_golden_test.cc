// Checkpoints that quantization libraries wrote, against weights dequantized by their own code.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "checkpoint/dialect.h"
#include "checkpoint/safetensors.h"

namespace octavo {
namespace {

struct Golden {
  std::string folder, dialect, weight, activation;
  bool kv_scales = false;
};
void PrintTo(const Golden& golden, std::ostream* out) {
  *out << golden.folder;
}

class DialectGolden : public testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(OCTAVO_TEST_DATA) / "quantized" / GetParam().folder;
    const auto text = read_text_file(folder_ / "config.json");
    ASSERT_TRUE(text.has_value());
    json_ = parse_json(*text, "config.json").value();
    config_ = parse_model_config(*text, "config.json").value();
    tensors_ = open_safetensors(folder_ / "model.safetensors").value();
    golden_ = open_safetensors(folder_ / "golden.safetensors").value();
    auto quantization = read_quantization(json_, config_, *tensors_);
    ASSERT_TRUE(quantization.has_value()) << quantization.error().message();
    quantization_ = std::move(*quantization);
  }

  std::filesystem::path folder_;
  Json json_;
  ModelConfig config_;
  std::unique_ptr<TensorReader> tensors_, golden_;
  StoredQuantization quantization_;
};

TEST_P(DialectGolden, DequantizedWeightsAreExact) {
  EXPECT_EQ(quantization_.dialect, GetParam().dialect);
  std::set<std::string> used;
  std::vector<std::string> notes;
  int compared = 0;
  for (const LinearModule& module : config_.linear_modules()) {
    const auto linear = read_stored_linear(module, quantization_, config_, *tensors_, used, notes);
    ASSERT_TRUE(linear.has_value()) << linear.error().message();
    EXPECT_EQ(linear->format.scaled(), quantization_.plan.linear(module.name).weight.scaled());
    const TensorEntry* expected = golden_->find("dequantized." + module.name + ".weight");
    if (expected == nullptr) continue;
    ++compared;
    const std::vector<float> values = dequantize(linear->view());
    int64_t different = 0;
    for (size_t i = 0; i < values.size(); ++i)
      different += values[i] != expected->plain->at(static_cast<int64_t>(i)) ? 1 : 0;
    EXPECT_EQ(different, 0) << module.name;
  }
  EXPECT_EQ(compared, 7) << "one weight of each kind";
  EXPECT_TRUE(notes.empty()) << notes.front();
}

TEST_P(DialectGolden, PlanSaysWhatTheConfigSays) {
  const LinearPlan& down = quantization_.plan.linear("model.layers.0.mlp.down_proj");
  EXPECT_EQ(down.weight.describe(), GetParam().weight);
  EXPECT_EQ(down.activation.describe(), GetParam().activation);
  EXPECT_EQ(down.reason, "checkpoint");
  EXPECT_EQ(quantization_.plan.linear("lm_head").weight, plain_format(ElementType::kBf16));
  ASSERT_EQ(quantization_.plan.kv.size(), static_cast<size_t>(config_.num_layers));
  for (const KvPlan& kv : quantization_.plan.kv)
    EXPECT_EQ(kv.k.element, GetParam().kv_scales ? ElementType::kE4m3 : ElementType::kBf16);
}

TEST_P(DialectGolden, EveryTensorIsUsedOnce) {
  std::set<std::string> used;
  std::vector<std::string> notes;
  for (const LinearModule& module : config_.linear_modules())
    ASSERT_TRUE(read_stored_linear(module, quantization_, config_, *tensors_, used, notes).has_value());
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const auto scales = read_kv_scales(layer, quantization_, config_, *tensors_, used, notes);
    ASSERT_TRUE(scales.has_value()) << scales.error().message();
    EXPECT_EQ(scales->k.size(), GetParam().kv_scales ? 1u : 0u);
    EXPECT_EQ(scales->v.size(), GetParam().kv_scales ? 1u : 0u);
  }
  for (const TensorEntry& entry : tensors_->entries()) {
    const bool other = entry.name.find("norm") != std::string::npos || entry.name.find("embed") != std::string::npos;
    EXPECT_NE(used.contains(entry.name), other) << entry.name;
  }
}

TEST_P(DialectGolden, StaticScalesAreRead) {
  std::set<std::string> used;
  std::vector<std::string> notes;
  for (const LinearModule& module : config_.linear_modules()) {
    const auto linear = read_stored_linear(module, quantization_, config_, *tensors_, used, notes);
    ASSERT_TRUE(linear.has_value());
    const bool is_static = quantization_.plan.linear(module.name).activation.scale_time == ScaleTime::kStored;
    ASSERT_EQ(linear->input_scale.has_value(), is_static) << module.name;
    const TensorEntry* stored = tensors_->find(module.name + ".input_scale");
    EXPECT_EQ(linear->input_scale.value_or(-1.0f), is_static ? stored->plain->at(0) : -1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Libraries, DialectGolden,
    testing::Values(
        Golden{"ct_fp8_block", "compressed-tensors", "fp8_e4m3 per 128x128", "fp8_e4m3 per 1x128"},
        Golden{"ct_fp8_block_partial", "compressed-tensors", "fp8_e4m3 per 128x128", "fp8_e4m3 per 1x128"},
        Golden{"ct_fp8_dynamic", "compressed-tensors", "fp8_e4m3 per row", "fp8_e4m3 per row"},
        Golden{"ct_fp8_static", "compressed-tensors", "fp8_e4m3 per tensor", "fp8_e4m3 per tensor"},
        Golden{"ct_fp8_static_kv", "compressed-tensors", "fp8_e4m3 per tensor", "fp8_e4m3 per tensor", true},
        Golden{"ct_w8a8_int8", "compressed-tensors", "int8 per row", "int8 per row"},
        Golden{"fp8_block_llama", "fp8", "fp8_e4m3 per 128x128", "fp8_e4m3 per 1x128"},
        Golden{"fp8_block_llama_e8m0", "fp8", "fp8_e4m3 per 128x128, e8m0 scales", "fp8_e4m3 per 1x128, e8m0 scales"},
        Golden{"fp8_block_qwen3_bf16_scales", "fp8", "fp8_e4m3 per 128x128", "fp8_e4m3 per 1x128"}),
    [](const auto& param) { return param.param.folder; });

}  // namespace
}  // namespace octavo
