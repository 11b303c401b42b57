// What logs and reports say of a model: fingerprints of its files and its plan, and its formats for people.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "engine/model.h"

namespace octavo {

// Changes whenever a file of the model does: names, sizes and times of weights, configuration and tokenizer. What a run
// may write beside them (.jsonl, .log) does not count.
std::string model_fingerprint(const std::filesystem::path& path);

// Changes with everything that the plan decides, and with the calibrated values of the KV cache that it may use.
std::string plan_fingerprint(const PrecisionPlan& plan, const Checkpoint& checkpoint);
inline std::string plan_fingerprint(const Model& model) {
  return plan_fingerprint(model.plan(), model.checkpoint());
}

// "fp8_e4m3 per row (210), bf16 (1)": the commonest first.
std::string count_text(const std::map<std::string, int64_t>& counts);

// The KV cache of all layers as flags spell it: "fp8_e4m3:static"; "fp8_e4m3 (28), bf16 (2)" where layers differ.
std::string kv_cache_name(const PrecisionPlan& plan);

}  // namespace octavo
