// Tensors beside the ones a model computes with: which are known and harmless, and what a second head means.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace octavo {

bool is_wide_element(ElementType element);  // F32, F16, BF16

// Why an unused tensor is harmless; empty where it is not known to be.
std::string known_extra(std::string_view name, const ModelConfig& config);

// An untied model must bring lm_head.weight. A tied one may too: where it differs from the embedding, the embedding
// wins and a note says so.
Result<void> check_head(const std::filesystem::path& path, const ModelConfig& config, const TensorReader& tensors,
                        std::vector<std::string>& notes);

}  // namespace octavo
