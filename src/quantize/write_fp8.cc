// The "fp8" dialect: E4M3 weights in blocks or with one scale per tensor, scales beside them.
#include "quantize/dialect_writers.h"
#include "quantize/quantization_config.h"

namespace octavo {

std::string fp8_refuses(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  if (w.element != ElementType::kE4m3) return "its weights are E4M3";
  if (w.granularity == Granularity::kRow) return "it has scales per block or per tensor, not per channel";
  if (w.grouped() && w.block_rows == 1) return "its blocks have more than one row";
  if (a.element != ElementType::kE4m3) return "its activations are E4M3";
  if (w.granularity == Granularity::kTensor) {
    if (a.scale_time == ScaleTime::kStored)
      return a.granularity == Granularity::kTensor ? "" : "static activations have one scale";
    if (a.granularity != Granularity::kRow || w.scale != ElementType::kF32 || a.scale != ElementType::kF32)
      return "with one scale per tensor, activations have FP32 scales per token";
    return {};
  }
  if (a.scale_time != ScaleTime::kDynamic) return "static activations go with one weight scale per tensor";
  if (a.granularity != Granularity::kBlock || a.block_rows != 1 || a.block_cols != w.block_cols)
    return "with blocks, activations have a scale per token and block column";
  if (a.scale != w.scale) return "weights and activations have the same kind of scale";
  return {};
}

Json fp8_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  Json config;
  config["quant_method"] = "fp8";
  config["activation_scheme"] = "dynamic";
  for (const LinearModule& module : modules)
    if (has_input_scale(plan.linear(module.name))) config["activation_scheme"] = "static";
  config["fmt"] = "e4m3";
  for (const LinearModule& module : modules) {
    const TensorFormat& weight = plan.linear(module.name).weight;
    if (weight.granularity != Granularity::kBlock) continue;
    config["weight_block_size"] = Json::array({weight.block_rows, weight.block_cols});
    if (weight.scale == ElementType::kE8m0) config["scale_fmt"] = "ue8m0";
    break;
  }
  config["modules_to_not_convert"] = wide_modules(plan, modules);
  return config;
}

}  // namespace octavo
