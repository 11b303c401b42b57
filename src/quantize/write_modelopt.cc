// The "modelopt" dialect (NVIDIA ModelOpt): one algorithm for all modules.
#include "quantize/dialect_writers.h"

namespace octavo {
namespace {

// The name of an algorithm; empty where it has none for these formats.
std::string_view modelopt_algorithm(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  const ElementType e4m3 = ElementType::kE4m3;
  const bool bf16 = a == plain_format(ElementType::kBf16);
  if (w.element == ElementType::kE2m1 && w.outer() && bf16) return "W4A16_NVFP4";
  if (w.element != e4m3) return "";
  if (a == group_format(e4m3, 32, ElementType::kE8m0) && is_group(w) && w.scale == ElementType::kE8m0) return "MXFP8";
  if (w.granularity == Granularity::kRow && a == row_format(e4m3)) return "FP8_PER_CHANNEL_PER_TOKEN";
  const bool one_scale = w.granularity == Granularity::kTensor && w.scale == ElementType::kF32;
  if (one_scale && a == w && a.scale_time == ScaleTime::kStored) return "FP8";
  return "";
}

}  // namespace

std::string modelopt_refuses(const LinearPlan& plan) {
  if (!modelopt_algorithm(plan).empty()) return {};
  return "it has NVFP4 with BF16 activations, MXFP8, and E4M3 per channel with activations per token, or with one "
         "scale "
         "per tensor and static activations";
}

Json modelopt_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  const LinearPlan& linear = quantized_plan(plan, modules);
  Json weights = {{"dynamic", false}, {"num_bits", element_bits(linear.weight.element)}, {"type", "float"}};
  if (is_group(linear.weight)) weights["group_size"] = linear.weight.block_cols;
  Json activations = nullptr;
  if (linear.activation.scaled()) {
    activations = {
        {"dynamic", linear.activation.scale_time == ScaleTime::kDynamic}, {"num_bits", 8}, {"type", "float"}};
    if (is_group(linear.activation)) activations["group_size"] = linear.activation.block_cols;
  }
  Json config;
  config["quant_method"] = "modelopt";
  config["quant_algo"] = modelopt_algorithm(linear);
  config["config_groups"]["group_0"] = {
      {"weights", weights}, {"input_activations", activations}, {"targets", Json::array({"Linear"})}};
  config["ignore"] = wide_modules(plan, modules);
  config["producer"] = {{"name", "octavo"}};
  return config;
}

}  // namespace octavo
