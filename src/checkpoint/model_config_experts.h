// Mixtures of experts in config.json: which layers have experts, how many, and what their tensors are called.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_config_keys.h"

namespace octavo {

// Of all layers together: more than any mixture has, and few enough to list.
inline constexpr int64_t kMostExperts = 131072;

// Parts of a module's name behind "model.layers.N.": "mlp.gate"; "mlp.experts" + ".E." + "gate_proj".
struct ExpertNames {
  std::string_view router, experts, gate, up, down;
};
bool may_have_experts(std::string_view model_type);
// Of a model type that may have experts.
const ExpertNames& expert_names(std::string_view model_type);

// Empty for dense model types, and where no layer has experts. `config`: layers and intermediate_size are known.
Result<std::optional<ExpertsConfig>> read_experts(const ConfigKeys& keys, const ModelConfig& config);

}  // namespace octavo
