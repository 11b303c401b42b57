#include "checkpoint/model_config_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace octavo {
namespace {

// What a class of transformers assumes where a key is absent, and which keys it heeds.
struct ExpertClass {
  std::string_view model_type;
  int64_t count, per_token;
  std::string_view size_key;       // of an expert's intermediate size; empty: intermediate_size
  int64_t size;                    // where the key is absent
  std::string_view normalize_key;  // false where absent; empty: always
  bool dense_layers;               // decoder_sparse_step and mlp_only_layers count
  ExpertNames names;
};

constexpr ExpertClass kExpertClasses[] = {
    {.model_type = "mixtral",
     .count = 8,
     .per_token = 2,
     .size_key = "",
     .size = 0,
     .normalize_key = "",
     .dense_layers = false,
     .names = {"block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"}},
    {.model_type = "qwen3_moe",
     .count = 128,
     .per_token = 8,
     .size_key = "moe_intermediate_size",
     .size = 768,
     .normalize_key = "norm_topk_prob",
     .dense_layers = true,
     .names = {"mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"}},
};

const ExpertClass* find_class(std::string_view model_type) {
  const auto found = std::find_if(std::begin(kExpertClasses), std::end(kExpertClasses),
                                  [&](const ExpertClass& row) { return row.model_type == model_type; });
  return found == std::end(kExpertClasses) ? nullptr : found;
}

// Layers are sparse at every decoder_sparse_step-th place, but for those that mlp_only_layers names.
Result<std::vector<bool>> read_layers(const ConfigKeys& keys, const ExpertClass& row, int64_t num_layers) {
  std::vector<bool> layers(static_cast<size_t>(num_layers), true);
  if (!row.dense_layers) return layers;
  OCTAVO_ASSIGN(const auto step, keys.integer("decoder_sparse_step", 1, kMaxSize));
  for (int64_t i = 0; i < num_layers; ++i) layers[static_cast<size_t>(i)] = (i + 1) % step.value_or(1) == 0;
  const Json* dense = keys.find("mlp_only_layers");
  if (dense == nullptr) return layers;
  const Error bad = keys.bad("mlp_only_layers", fmt::format("a list of layers below {}", num_layers));
  if (!dense->is_array()) return fail(bad);
  for (const Json& layer : *dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= num_layers) return fail(bad);
    layers[layer.get<size_t>()] = false;
  }
  return layers;
}

}  // namespace

bool may_have_experts(std::string_view model_type) {
  return find_class(model_type) != nullptr;
}

const ExpertNames& expert_names(std::string_view model_type) {
  const ExpertClass* row = find_class(model_type);
  OCTAVO_CHECK(row != nullptr, "{} has no experts", model_type);
  return row->names;
}

Result<std::optional<ExpertsConfig>> read_experts(const ConfigKeys& keys, const ModelConfig& config) {
  const ExpertClass* row = find_class(config.model_type);
  if (row == nullptr) return std::nullopt;
  ExpertsConfig experts{.intermediate_size = config.intermediate_size, .normalize = row->normalize_key.empty()};
  const int64_t most = kMostExperts / config.num_layers;
  OCTAVO_ASSIGN(auto count, keys.integer("num_local_experts", 0, most));
  if (!count) {
    OCTAVO_ASSIGN(count, keys.integer("num_experts", 0, most));
  }
  experts.count = count.value_or(row->count);
  OCTAVO_ASSIGN(const auto per_token, keys.integer("num_experts_per_tok", 1, most));
  experts.per_token = per_token.value_or(row->per_token);
  if (!row->size_key.empty()) {
    OCTAVO_ASSIGN(const auto size, keys.integer(row->size_key, 1, kMaxSize));
    experts.intermediate_size = size.value_or(row->size);
  }
  if (!row->normalize_key.empty()) {
    OCTAVO_ASSIGN(const auto normalize, keys.boolean(row->normalize_key));
    experts.normalize = normalize.value_or(false);
  }
  OCTAVO_ASSIGN(experts.layers, read_layers(keys, *row, config.num_layers));
  if (experts.count == 0 || std::find(experts.layers.begin(), experts.layers.end(), true) == experts.layers.end())
    return std::nullopt;
  if (experts.per_token > experts.count)
    return fail(keys.bad("num_experts_per_tok", fmt::format("at most the number of experts, {}", experts.count)));
  return experts;
}

}  // namespace octavo
