// The tensors of a quantized linear layer: where they are, whether they fit the rule, and their values.
// Include only in .cc files.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/dialect_rules.h"

namespace octavo {

// "FILE: tensor NAME", for errors.
std::string tensor_where(const TensorEntry& entry);

// X.weight; for the head of a tied model the embedding. nullptr when there is none.
const TensorEntry* find_weight(const LinearModule& module, const ModelConfig& config, const TensorReader& tensors);

// Whether a weight is stored without quantization scales: FP32, FP16, BF16, or blocks that a GGUF decodes.
bool is_wide(const TensorEntry& entry);

// The scale tensor's possible names behind the module's, most usual first.
std::span<const std::string_view> scale_names(std::string_view dialect);
std::span<const std::string_view> input_scale_names(std::string_view dialect);
// The one tensor MODULE.NAME that exists; nullptr when none does, an error when two do.
Result<const TensorEntry*> find_one_of(const LinearModule& module, std::span<const std::string_view> names,
                                       const TensorReader& tensors);
Result<const TensorEntry*> find_scale(const LinearModule& module, std::string_view dialect,
                                      const TensorReader& tensors);

// What the rule and the tensors together say. Errors: missing weight, wrong shape or type, a quantized weight without a
// scale or that the config calls unquantized, a scale grid of the wrong shape, a missing static input scale.
Result<LinearPlan> resolve_linear(const LinearModule& module, const ModuleRule& rule, std::string_view dialect,
                                  const ModelConfig& config, const TensorReader& tensors,
                                  std::vector<std::string>& notes);

// All values of a scale tensor (at most `limit`; F32, BF16, F16, F8_E8M0 or F8_E4M3, or bytes taken `as` one of the
// last two) as FP32. Errors: NaN, infinite, negative.
Result<std::vector<float>> read_scales(const TensorEntry& entry, int64_t limit, std::optional<ElementType> as = {});

}  // namespace octavo
