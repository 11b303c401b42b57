// The "gptq" dialect: INT4 in groups.
#include "quantize/dialect_writers.h"

namespace octavo {

std::string gptq_refuses(const LinearPlan& plan) {
  if (plan.weight.element != ElementType::kInt4 || !is_group(plan.weight)) return "its weights are INT4 in groups";
  if (plan.weight.scale != ElementType::kF16) return "its scales are FP16";
  return plan.activation == plain_format(ElementType::kBf16) ? "" : "its activations are BF16";
}

Json gptq_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  const TensorFormat& weight = quantized_plan(plan, modules).weight;
  Json config;
  config["quant_method"] = "gptq";
  config["bits"] = element_bits(weight.element);
  config["group_size"] = weight.block_cols;
  config["desc_act"] = false;
  config["sym"] = !weight.zero_points;
  // Version 1 stores zero points less one, and cannot say 0.
  config["checkpoint_format"] = weight.zero_points ? "gptq_v2" : "gptq";
  config["lm_head"] = false;
  for (const LinearModule& module : modules) {
    if (plan.linear(module.name).weight.scaled()) {
      if (module.role == Role::kHead) config["lm_head"] = true;
      continue;
    }
    if (module.role == Role::kHead) continue;
    std::string pattern;
    for (const char c : module.name) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
    config["dynamic"]["-:" + pattern + "$"] = Json::object();
  }
  return config;
}

}  // namespace octavo
