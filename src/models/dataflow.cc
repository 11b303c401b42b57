#include "models/dataflow.h"

#include <algorithm>

#include "formats/paged_kv.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/producers.h"
#include "precision/kv_format.h"

namespace octavo {
namespace {

constexpr const char* kResidual = "float32";

Operation linear_operation(const LinearModule& module, const LinearPlan& plan, Isa isa) {
  Operation operation{
      .name = std::string(role_name(module.role)), .input = plan.activation.describe(), .output = "float32"};
  operation.weight = plan.weight.describe();
  if (plan.outliers > 0) {
    operation.input += fmt::format(", {} outlier channels float32", plan.outliers);
    operation.weight += fmt::format(", {} columns bf16", plan.outliers);
  }
  const LinearKey key{plan.weight, plan.activation, module.rows, module.cols};
  operation.kernel = choose_linear(key, isa, &operation.refused).name;
  return operation;
}

}  // namespace

std::vector<Operation> layer_dataflow(const ModelConfig& config, const PrecisionPlan& plan, int layer, Isa isa) {
  std::vector<LinearModule> modules;
  for (const LinearModule& module : config.linear_modules())
    if (module.layer == layer) modules.push_back(module);
  const std::string producers(choose_producers(isa).name);
  const auto linear = [&](Role role) {
    const auto module = std::find_if(modules.begin(), modules.end(), [role](const auto& m) { return m.role == role; });
    return linear_operation(*module, plan.linear(module->name), isa);
  };
  const auto producer = [&](std::string name, std::string input, std::string output) {
    return Operation{
        .name = std::move(name), .input = std::move(input), .output = std::move(output), .kernel = producers};
  };
  if (layer < 0) {
    const Operation head = linear(Role::kHead);
    return {producer("rms_norm", kResidual, head.input), head};
  }
  const KvPlan& kv = plan.kv[static_cast<size_t>(layer)];
  const std::string cache = "K " + describe_kv(kv.k, kv.k_options) + ", V " + describe_kv(kv.v, kv.v_options);
  const Operation q = linear(Role::kQ), o = linear(Role::kO), gate = linear(Role::kGate), down = linear(Role::kDown);
  Operation attention{.name = "attention", .input = "q float32, " + cache, .output = o.input};
  attention.kernel = choose_attention({kv.k.element, kv.v.element, static_cast<int>(config.head_dim),
                                       static_cast<int>(config.num_heads / config.num_kv_heads)},
                                      isa, &attention.refused)
                         .name;
  return {
      producer("rms_norm", kResidual, q.input),
      q,
      linear(Role::kK),
      linear(Role::kV),
      producer(config.qk_norm ? "qk_norm + rope + KV write" : "rope + KV write", "float32", "q float32, " + cache),
      attention,
      o,
      producer("rms_norm", kResidual, gate.input),
      gate,
      linear(Role::kUp),
      producer(config.down_hadamard > 0 ? fmt::format("silu_gate, hadamard of {}", config.down_hadamard) : "silu_gate",
               "float32", down.input),
      down};
}

MemoryPlan memory_plan(const ModelConfig& config, const PrecisionPlan& plan, int64_t embedding_bytes, int64_t chunk) {
  MemoryPlan memory{.embedding_bytes = embedding_bytes};
  int64_t widest = 0;
  for (const LinearModule& module : config.linear_modules()) {
    const TensorFormat& weight = plan.linear(module.name).weight;
    memory.weight_bytes += weight.element_bytes(module.rows, module.cols) +
                           weight.scale_rows(module.rows) * weight.scale_cols(module.cols) * 4 +
                           module.rows * plan.linear(module.name).outliers * 2;
    widest = std::max(widest, module.cols);
  }
  memory.norm_bytes =
      (config.num_layers * (2 * config.hidden_size + (config.qk_norm ? 2 * config.head_dim : 0)) + config.hidden_size) *
      4;
  for (const KvPlan& kv : plan.kv) {
    const KvPageLayout layout{.k = kv.k.element,
                              .v = kv.v.element,
                              .head_dim = static_cast<int>(config.head_dim),
                              .magnitudes = kv.k_options.rescale_tokens > 0 || kv.v_options.rescale_tokens > 0};
    memory.kv_bytes_per_token +=
        static_cast<double>(layout.page_bytes()) * static_cast<double>(config.num_kv_heads) / kPageTokens;
  }
  const int64_t wide = std::max(2 * config.intermediate_size, config.q_size() + 2 * config.kv_size());
  memory.scratch_bytes = chunk * (config.hidden_size + wide + 2 * widest) * 4 + config.vocab_size * 4;
  return memory;
}

}  // namespace octavo
