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

// The operations of a role: one, or in a layer with experts one for each pair of formats that some of them have.
std::vector<Operation> role_operations(const std::vector<LinearModule>& modules, const PrecisionPlan& plan, Role role,
                                       Isa isa) {
  std::vector<Operation> operations;
  std::vector<int> counts;
  bool experts = false;
  for (const LinearModule& module : modules) {
    if (module.role != role) continue;
    experts = experts || module.expert >= 0;
    Operation operation = linear_operation(module, plan.linear(module.name), isa);
    const auto same = std::find_if(operations.begin(), operations.end(), [&](const Operation& other) {
      return other.weight == operation.weight && other.input == operation.input;
    });
    if (same != operations.end()) {
      ++counts[static_cast<size_t>(same - operations.begin())];
      continue;
    }
    operations.push_back(std::move(operation));
    counts.push_back(1);
  }
  for (size_t i = 0; experts && i < operations.size(); ++i)
    operations[i].name += fmt::format(" of {} experts", counts[i]);
  return operations;
}

}  // namespace

std::vector<Operation> layer_dataflow(const ModelConfig& config, const PrecisionPlan& plan, int layer, Isa isa) {
  std::vector<LinearModule> modules;
  for (LinearModule& module : config.linear_modules())
    if (module.layer == layer) modules.push_back(std::move(module));
  const std::string producers(choose_producers(isa).name);
  std::vector<Operation> operations;
  const auto add = [&](Role role) {
    for (Operation& operation : role_operations(modules, plan, role, isa)) operations.push_back(std::move(operation));
  };
  const auto input_of_role = [&](Role role) { return role_operations(modules, plan, role, isa).front().input; };
  const auto produce = [&](std::string name, std::string input, std::string output) {
    operations.push_back(
        {.name = std::move(name), .input = std::move(input), .output = std::move(output), .kernel = producers});
  };
  if (layer < 0) {
    produce("rms_norm", kResidual, input_of_role(Role::kHead));
    add(Role::kHead);
    return operations;
  }
  const KvPlan& kv = plan.kv[static_cast<size_t>(layer)];
  const std::string cache = "K " + describe_kv(kv.k, kv.k_options) + ", V " + describe_kv(kv.v, kv.v_options);
  produce("rms_norm", kResidual, input_of_role(Role::kQ));
  for (const Role role : {Role::kQ, Role::kK, Role::kV}) add(role);
  produce(config.qk_norm ? "qk_norm + rope + KV write" : "rope + KV write", "float32", "q float32, " + cache);
  Operation attention{.name = "attention", .input = "q float32, " + cache, .output = input_of_role(Role::kO)};
  attention.kernel = choose_attention({kv.k.element, kv.v.element, static_cast<int>(config.head_dim),
                                       static_cast<int>(config.num_heads / config.num_kv_heads)},
                                      isa, &attention.refused)
                         .name;
  operations.push_back(std::move(attention));
  add(Role::kO);
  if (config.has_experts(layer)) {
    produce("rms_norm", kResidual, input_of_role(Role::kRouter));
    add(Role::kRouter);
    operations.push_back(
        {.name = fmt::format("softmax, {} of {} experts", config.experts->per_token, config.experts->count),
         .input = "float32",
         .output = "float32",
         .kernel = "routing"});
    produce("rows of an expert", "float32", input_of_role(Role::kGate));
  } else {
    produce("rms_norm", kResidual, input_of_role(Role::kGate));
  }
  for (const Role role : {Role::kGate, Role::kUp}) add(role);
  produce(config.down_hadamard > 0 ? fmt::format("silu_gate, hadamard of {}", config.down_hadamard) : "silu_gate",
          "float32", input_of_role(Role::kDown));
  add(Role::kDown);
  return operations;
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
  const int64_t wide = std::max(2 * config.widest_intermediate(), config.q_size() + 2 * config.kv_size());
  memory.scratch_bytes = chunk * (config.hidden_size + wide + 2 * widest) * 4 + config.vocab_size * 4;
  // Normed rows, those of an expert, its outputs, their sum; scores.
  if (config.experts) memory.scratch_bytes += chunk * (4 * config.hidden_size + config.experts->count) * 4;
  return memory;
}

}  // namespace octavo
