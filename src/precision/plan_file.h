// A plan as a file: the scheme of every linear layer and the KV format of every layer, for one model.
//
//   {"octavo_plan": 1,
//    "model": {"architecture": "LlamaForCausalLM", "layers": 30, "hidden_size": 576, "intermediate_size": 1536,
//              "vocabulary": 49152},
//    "base": "bf16",                                              the scheme that the search started from
//    "linears": {"model.layers.0.self_attn.q_proj": "fp8", ...},  every linear layer, lm_head too
//    "kv": [{"k": "fp8_e4m3", "v": "bf16"}, ...]}                 every layer
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "precision/plan.h"

namespace octavo {

// By what a file made for a model knows it again.
struct ModelShape {
  std::string architecture;  // "LlamaForCausalLM"
  int64_t layers = 0, hidden_size = 0, intermediate_size = 0, vocabulary = 0;

  bool operator==(const ModelShape&) const = default;
};

// Error: a file made for another model; says what differs. `what`: "the plan", "the sensitivity file".
Result<void> check_made_for(const ModelShape& found, const ModelShape& model, std::string_view what,
                            const std::filesystem::path& file);

// Names as --kv-cache-dtype takes them.
struct KvNames {
  std::string k, v;

  bool operator==(const KvNames&) const = default;
};

struct PlanFile {
  std::filesystem::path path;  // where it was read from: for errors and reasons
  ModelShape model;
  std::string base;
  std::vector<std::pair<std::string, std::string>> linears;  // module, scheme
  std::vector<KvNames> kv;                                   // one per layer
};

// Errors: not a plan, a key that is missing, unknown or of the wrong type, an unknown scheme or KV format.
Result<PlanFile> parse_plan_file(std::string_view json, const std::filesystem::path& path);
Result<PlanFile> read_plan_file(const std::filesystem::path& path);
std::string plan_file_text(const PlanFile& plan);

// The plan for these modules. Errors: another model, a module that the file or the model lacks, another number of
// layers, a scheme that a shape does not allow.
Result<PrecisionPlan> make_plan(const std::vector<LinearModule>& modules, const ModelShape& model,
                                const PlanFile& file);

}  // namespace octavo
