// Quantized checkpoint dialects: quantization_config and its tensors -> a PrecisionPlan, weights and scales. The table
// of dialects stands in dialect.cc: "fp8" (DeepSeek, Qwen, fine-grained FP8), "compressed-tensors", "modelopt", "gptq",
// "awq", "mxfp4" (gpt-oss). Include only in .cc files: it brings the JSON library.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dialect_packed.h"
#include "checkpoint/model_config.h"
#include "precision/plan.h"

namespace octavo {

// What a checkpoint's quantization_config says, cross-checked with the tensors.
struct StoredQuantization {
  std::string dialect;  // "none", "fp8", "compressed-tensors", ...
  PrecisionPlan plan;   // scheme "checkpoint"; an entry for every linear module and layer
  std::map<std::string, PackedWeight, std::less<>> packed;  // modules whose codes are packed the dialect's own way
};

// config_json: the parsed config.json (an object). Without quantization_config: dialect "none", everything as stored.
// A dialect that is not read yet is an error that names it and the ones that are.
Result<StoredQuantization> read_quantization(const Json& config_json, const ModelConfig& config,
                                             const TensorReader& tensors);

// The same for modules that the caller names: those of an architecture that cannot run, such as quantized_modules().
Result<StoredQuantization> read_quantization(const Json& config_json, const std::vector<LinearModule>& modules,
                                             const ModelConfig& config, const TensorReader& tensors);

// Every quantized matrix of a checkpoint by the names of its tensors, whatever the architecture. Modules of gpt-oss
// hold the experts of a layer one after the other: rows = experts x outputs.
Result<std::vector<LinearModule>> quantized_modules(const Json& config_json, const TensorReader& tensors);

// The weight of a module with its scales, static input scale and bias. Checks types, shapes and scale values; adds
// the names of the tensors it took to `used`, and what a person should know (stored NaN codes, zero scales) to `notes`.
Result<StoredLinear> read_stored_linear(const LinearModule& module, const StoredQuantization& quantization,
                                        const ModelConfig& config, const TensorReader& tensors,
                                        std::set<std::string>& used, std::vector<std::string>& notes);

// KV scales of a layer in any spelling: one value, or one per KV head; empty for a side that has none (the plan then
// says that this side's scales are computed per token and head). `kv_scale` serves both sides. A zero, negative or
// non-finite scale is an error.
Result<KvScales> read_kv_scales(int layer, const StoredQuantization& quantization, const ModelConfig& config,
                                const TensorReader& tensors, std::set<std::string>& used,
                                std::vector<std::string>& notes);

}  // namespace octavo
