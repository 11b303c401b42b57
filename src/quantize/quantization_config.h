// How a plan is written down in a checkpoint: which dialect can say it, its quantization_config, the scale tensors.
// Include only in .cc files: it brings the JSON library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "formats/tensor.h"
#include "precision/plan.h"

namespace octavo {

// "fp8" for plans of 128x128-like blocks or of one scale per tensor, "compressed-tensors" for everything else; or the
// asked one ("modelopt" and "gptq" only so). Error: unknown dialect, or a module whose formats the asked dialect cannot
// express.
Result<std::string> choose_dialect(std::string_view asked, const PrecisionPlan& plan,
                                   const std::vector<LinearModule>& modules);

bool is_written(std::string_view dialect);
std::string written_dialects();  // "fp8, compressed-tensors, ..."

// The quantization_config object. Ignored modules are listed by their full names. The plan is one that
// choose_dialect() accepted.
// With `kv`, also that the checkpoint stores KV scales, where has_kv_scale_tensors() says so and the dialect can.
Json write_quantization_config(std::string_view dialect, const PrecisionPlan& plan,
                               const std::vector<LinearModule>& modules, bool kv = false);

// Whether the plan's KV cache is one stored E4M3 scale for K and one for V in every layer, and nothing else: what other
// engines read as tensors.
bool has_kv_scale_tensors(const PrecisionPlan& plan);
std::string kv_scale_name(size_t layer, bool key);
// Its "kv_cache_scheme".
Json stored_kv_cache_scheme();

// The scale tensor of a [rows, cols] weight: FP32. For formats that are not packed (quantize/written_weight.h).
struct ScaleTensor {
  std::string name;
  Shape shape;
};
ScaleTensor scale_tensor(std::string_view dialect, const LinearModule& module, const TensorFormat& weight);

// Static activations: one FP32 scale beside the weight's.
bool has_input_scale(const LinearPlan& plan);
ScaleTensor input_scale_tensor(std::string_view dialect, const LinearModule& module);

// What other engines will refuse or do with such a checkpoint.
std::vector<std::string> portability_notes(const PrecisionPlan& plan, const std::vector<LinearModule>& modules);

}  // namespace octavo
