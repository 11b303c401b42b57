#include "engine/cost.h"

namespace octavo {

TokenCost token_cost(const Model& model) {
  const Decoder& decoder = model.decoder();
  const ModelConfig& c = model.config();
  TokenCost cost;
  cost.linear_bytes = static_cast<double>(decoder.report().linear_bytes + decoder.report().norm_bytes);
  for (const Decoder::Layer& layer : decoder.layers())
    for (const LinearGroup* group : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      cost.linear_flops += 2.0 * static_cast<double>(group->rows() * group->cols());
  cost.head_bytes = static_cast<double>(decoder.head().bytes());
  cost.head_flops = 2.0 * static_cast<double>(decoder.head().rows() * decoder.head().cols());
  cost.kv_bytes = model.kv_geometry().bytes_per_token();
  cost.attention_flops = 4.0 * static_cast<double>(c.num_layers * c.num_heads * c.head_dim);
  return cost;
}

StepCost step_cost(const TokenCost& cost, const Step& step) {
  StepCost out{.bytes = cost.linear_bytes - cost.head_bytes,
               .operations = static_cast<double>(step.num_rows) * cost.linear_flops +
                             static_cast<double>(step.num_logits) * cost.head_flops};
  for (const Share& share : step.shares) {
    const auto rows = static_cast<double>(share.num_rows), position = static_cast<double>(share.position);
    out.bytes += cost.kv_bytes * (position + rows);
    out.operations += cost.attention_flops * rows * (position + (rows + 1) / 2);
  }
  return out;
}

double compute_peak(const Model& model, const Roofline& roofline, std::string& name) {
  const LinearPlan& plan = model.plan().linear("model.layers.0.mlp.down_proj");
  const bool int8 = plan.weight.element == ElementType::kInt8 && plan.activation.element == ElementType::kInt8;
  if (int8 && roofline.int8_gops > 0) {  // not measured without AVX-512
    name = "INT8 dot peak";
    return roofline.int8_gops;
  }
  const bool narrow = plan.weight.element != ElementType::kF32 && plan.activation.element != ElementType::kF32;
  if (narrow && roofline.bf16_dot_gflops > roofline.fma_gflops) {
    name = "BF16 dot peak";
    return roofline.bf16_dot_gflops;
  }
  name = "FMA peak";
  return roofline.fma_gflops;
}

}  // namespace octavo
