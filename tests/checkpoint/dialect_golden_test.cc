// Checkpoints that quantization libraries wrote, against weights dequantized by their own code.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "checkpoint/dialect.h"
#include "checkpoint/safetensors.h"

namespace octavo {
namespace {

constexpr const char* kFourBits = "checkpoint, activations BF16 instead of four bits";

struct Golden {
  std::string folder, dialect, weight, activation;
  bool kv_scales = false;
  std::string reason = "checkpoint";
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

// Dequantizes every quantized matrix that the golden knows and compares all values. Returns how many it knew.
int expect_exact_matrices(const Json& json, const TensorReader& tensors, const TensorReader& golden) {
  const auto modules = quantized_modules(json, tensors);
  EXPECT_TRUE(modules.has_value()) << modules.error().message();
  const auto quantization = read_quantization(json, *modules, ModelConfig{}, tensors);
  EXPECT_TRUE(quantization.has_value()) << quantization.error().message();
  if (!modules || !quantization) return 0;
  int compared = 0;
  for (const LinearModule& module : *modules) {
    std::set<std::string> used;
    std::vector<std::string> notes;
    const auto linear = read_stored_linear(module, *quantization, ModelConfig{}, tensors, used, notes);
    EXPECT_TRUE(linear.has_value()) << linear.error().message();
    if (!linear) continue;
    const TensorEntry* expected = golden.find("dequantized." + module.name + ".weight");
    const bool experts = expected == nullptr;
    if (experts) expected = golden.find("dequantized." + module.name);
    if (expected == nullptr) continue;
    ++compared;
    const std::vector<float> values = dequantize(linear->view());
    EXPECT_EQ(static_cast<int64_t>(values.size()), expected->plain->size()) << module.name;
    const int64_t in = module.cols, out = experts ? expected->shape[2] : module.rows;
    int64_t different = 0;
    for (int64_t row = 0; row < module.rows; ++row)
      for (int64_t col = 0; col < in; ++col) {
        const int64_t at = experts ? (row / out * in + col) * out + row % out : row * in + col;
        different += values[static_cast<size_t>(row * in + col)] != expected->plain->at(at) ? 1 : 0;
      }
    EXPECT_EQ(different, 0) << module.name;
  }
  return compared;
}

TEST_P(DialectGolden, DequantizedWeightsAreExact) {
  EXPECT_EQ(quantization_.dialect, GetParam().dialect);
  std::set<std::string> used;
  std::vector<std::string> notes;
  int compared = 0;
  for (const LinearModule& module : config_.linear_modules()) {
    const auto linear = read_stored_linear(module, quantization_, config_, *tensors_, used, notes);
    ASSERT_TRUE(linear.has_value()) << linear.error().message();
    EXPECT_EQ(linear->format.scaled(), quantization_.plan.linear(module.name).weight.scaled());
    if (linear->format.scaled()) {
      EXPECT_EQ(linear->format, quantization_.plan.linear(module.name).weight);
    }
    const TensorEntry* expected = golden_->find("dequantized." + module.name + ".weight");
    if (expected == nullptr) continue;
    ++compared;
    const std::vector<float> values = dequantize(linear->view());
    int64_t different = 0;
    for (size_t i = 0; i < values.size(); ++i)
      different += values[i] != expected->plain->at(static_cast<int64_t>(i)) ? 1 : 0;
    EXPECT_EQ(different, 0) << module.name;
  }
  EXPECT_GE(compared, 2) << "weights with one and with several groups";
  EXPECT_TRUE(notes.empty()) << notes.front();
}

TEST_P(DialectGolden, PlanSaysWhatTheConfigSays) {
  const LinearPlan& down = quantization_.plan.linear("model.layers.0.mlp.down_proj");
  EXPECT_EQ(down.weight.describe(), GetParam().weight);
  EXPECT_EQ(down.activation.describe(), GetParam().activation);
  EXPECT_EQ(down.reason, GetParam().reason);
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

// Every quantized matrix, of architectures that cannot run yet too: the tests' own data, or a larger folder of such
// checkpoints, given by OCTAVO_GOLDENS.
TEST(DialectMatrices, OfAnyArchitectureDequantizeExactly) {
  const char* given = std::getenv("OCTAVO_GOLDENS");
  const auto collection = std::filesystem::path(given != nullptr ? given : OCTAVO_TEST_DATA "/quantized");
  int folders = 0;
  for (const auto& folder : std::filesystem::directory_iterator(collection)) {
    if (!std::filesystem::exists(folder.path() / "model.safetensors")) continue;
    SCOPED_TRACE(folder.path().filename().string());
    const Json json = parse_json(read_text_file(folder.path() / "config.json").value(), "config.json").value();
    const auto tensors = open_safetensors(folder.path() / "model.safetensors").value();
    const auto golden = open_safetensors(folder.path() / "golden.safetensors").value();
    EXPECT_GE(expect_exact_matrices(json, *tensors, *golden), given != nullptr ? 2 : 1);  // ours are cut short
    ++folders;
  }
  EXPECT_GT(folders, 20);
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
        Golden{"fp8_block_qwen3_bf16_scales", "fp8", "fp8_e4m3 per 128x128", "fp8_e4m3 per 1x128"},
        Golden{"ct_w4a16", "compressed-tensors", "int4 per 1x128, bf16 scales", "bf16"},
        Golden{"ct_w4a16_asym_g32", "compressed-tensors", "int4 per 1x32, bf16 scales, zero points", "bf16"},
        Golden{"ct_w8a16", "compressed-tensors", "int8 per 1x128, bf16 scales", "bf16"},
        Golden{"ct_nvfp4", "compressed-tensors", "fp4_e2m1 per 1x16, fp8_e4m3 scales", "bf16", false, kFourBits},
        Golden{"ct_mxfp4", "compressed-tensors", "fp4_e2m1 per 1x32, e8m0 scales", "bf16", false, kFourBits},
        Golden{"ct_mxfp8", "compressed-tensors", "fp8_e4m3 per 1x32, e8m0 scales", "fp8_e4m3 per 1x32, e8m0 scales"},
        Golden{"modelopt_fp8_kv", "modelopt", "fp8_e4m3 per tensor", "fp8_e4m3 per tensor", true},
        Golden{"modelopt_fp8_pc_pt", "modelopt", "fp8_e4m3 per row", "fp8_e4m3 per row"},
        Golden{"modelopt_fp8_pb_wo", "modelopt", "fp8_e4m3 per 128x128", "bf16"},
        Golden{"modelopt_mxfp8", "modelopt", "fp8_e4m3 per 1x32, e8m0 scales", "fp8_e4m3 per 1x32, e8m0 scales"},
        Golden{"modelopt_nvfp4_kv", "modelopt", "fp4_e2m1 per 1x16, fp8_e4m3 scales", "bf16", true, kFourBits},
        Golden{"modelopt_w4a16_awq", "modelopt", "bf16", "bf16", false,
               "checkpoint, dequantized: its input has a factor for each column"},
        Golden{"gptq_w4_g32", "gptq", "int4 per 1x32, float16 scales", "bf16"},
        Golden{"gptq_w4_g32_asym", "gptq", "int4 per 1x32, float16 scales, zero points", "bf16"},
        Golden{"gptq_v2_w4_g32_asym", "gptq", "int4 per 1x32, float16 scales, zero points", "bf16"},
        Golden{"gptq_w8_g32", "gptq", "int8 per 1x32, float16 scales", "bf16"},
        Golden{"gptq_w4_g32_desc_act", "gptq", "bf16", "bf16", false,
               "checkpoint, dequantized: its columns lie in any order of groups"},
        Golden{"awq_w4_g32", "awq", "int4 per 1x32, float16 scales, zero points", "bf16"}),
    [](const auto& param) { return param.param.folder; });

}  // namespace
}  // namespace octavo
