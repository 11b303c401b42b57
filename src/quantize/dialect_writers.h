// The dialects that are written: a file each. Include only in .cc files: it brings the JSON library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "precision/plan.h"

namespace octavo {

// Why the dialect cannot express a quantized module; empty when it can.
std::string fp8_refuses(const LinearPlan& plan);
std::string compressed_tensors_refuses(const LinearPlan& plan);
std::string modelopt_refuses(const LinearPlan& plan);
std::string gptq_refuses(const LinearPlan& plan);

// The quantization_config object of a plan that the dialect does not refuse. `kv`: with the scheme of a KV cache of one
// stored scale for K and one for V.
Json fp8_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules);
Json compressed_tensors_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules, bool kv);
Json modelopt_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules);
Json gptq_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules);

// --- what they share: quantization_config.cc ---

// Groups along the inputs.
bool is_group(const TensorFormat& format);
// Full names of the modules that stay wide.
Json wide_modules(const PrecisionPlan& plan, const std::vector<LinearModule>& modules);
// The plan of the quantized modules, where all have the same.
const LinearPlan& quantized_plan(const PrecisionPlan& plan, const std::vector<LinearModule>& modules);

}  // namespace octavo
