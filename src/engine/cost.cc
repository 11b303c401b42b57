#include "engine/cost.h"

#include <cmath>

namespace octavo {

TokenCost token_cost(const Model& model) {
  const Decoder& decoder = model.decoder();
  const ModelConfig& c = model.config();
  TokenCost cost;
  cost.linear_bytes = static_cast<double>(decoder.report().linear_bytes + decoder.report().norm_bytes);
  if (c.experts)
    cost.share_of_experts = static_cast<double>(c.experts->per_token) / static_cast<double>(c.experts->count);
  const auto flops = [](const LinearGroup& group) { return 2.0 * static_cast<double>(group.rows() * group.cols()); };
  for (const Decoder::Layer& layer : decoder.layers()) {
    for (const LinearGroup* group : layer.groups()) cost.linear_flops += flops(*group);
    for (const DecoderLayer::Expert& expert : layer.experts) {
      cost.expert_bytes += static_cast<double>(expert.gate_up.bytes() + expert.down.bytes());
      cost.linear_flops -= (1 - cost.share_of_experts) * (flops(expert.gate_up) + flops(expert.down));
    }
  }
  cost.linear_bytes -= cost.expert_bytes;
  cost.head_bytes = static_cast<double>(decoder.head().bytes());
  cost.head_flops = 2.0 * static_cast<double>(decoder.head().rows() * decoder.head().cols());
  cost.kv_bytes = model.kv_geometry().bytes_per_token();
  cost.attention_flops = 4.0 * static_cast<double>(c.num_layers * c.num_heads * c.head_dim);
  return cost;
}

double TokenCost::weight_bytes(double rows) const {
  return linear_bytes + expert_bytes * (1 - std::pow(1 - share_of_experts, rows));
}

StepCost step_cost(const TokenCost& cost, const Step& step) {
  StepCost out{.bytes = cost.weight_bytes(static_cast<double>(step.num_rows)) - cost.head_bytes,
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
  const LinearKey& plan = model.decoder().layers()[0].groups().back()->inputs()[0].layers[0].key;  // of a down
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
