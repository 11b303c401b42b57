// What a quantization_config says about each module and about the KV cache, before it is compared with the tensors.
// One reader per dialect fills these; dialect.cc does the comparing. Include only in .cc files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/packed_layout.h"
#include "precision/plan.h"

namespace octavo {

inline constexpr std::string_view kConfigPath = "quantization_config";  // in errors

struct ModuleRule {
  bool quantized = false;
  TensorFormat weight;                   // as the config says; the stored scales may turn its scale element into E8M0
  TensorFormat activation;               // kTensor with kStored: a static input scale
  bool shape_decides = false;            // per tensor in the config, but per channel where there is one scale per row
  std::string reason;                    // for the plan: "checkpoint", "ignored: lm_head"
  const PackedLayout* layout = nullptr;  // nullptr: the codes lie in MODULE.weight as they are
  bool zeros_less_one = false;           // GPTQ version 1 stores zero points less one
  bool shape_groups = false;             // the scale grid's shape says how many columns share a scale
};

// The rule of a module that a config leaves wide.
inline ModuleRule ignored_rule(const std::string& entry) {
  return {.quantized = false, .weight = {}, .activation = {}, .reason = "ignored: " + entry};
}

struct KvRule {
  ElementType element = ElementType::kE4m3;
  bool stored = true;  // scales in the checkpoint; else computed per token and head
};

struct DialectRules {
  std::string dialect;
  std::vector<ModuleRule> modules;  // in the order of the modules given
  std::optional<KvRule> kv;
  std::vector<std::string> notes;
};

// `config` is the quantization_config object.
Result<DialectRules> read_fp8_rules(const Json& config, const std::vector<LinearModule>& modules,
                                    const TensorReader& tensors);
Result<DialectRules> read_compressed_tensors_rules(const Json& config, const std::vector<LinearModule>& modules,
                                                   const TensorReader& tensors);

Result<DialectRules> read_modelopt_rules(const Json& config, const std::vector<LinearModule>& modules,
                                         const TensorReader& tensors);
Result<DialectRules> read_gptq_rules(const Json& config, const std::vector<LinearModule>& modules,
                                     const TensorReader& tensors);
Result<DialectRules> read_awq_rules(const Json& config, const std::vector<LinearModule>& modules,
                                    const TensorReader& tensors);
Result<DialectRules> read_mxfp4_rules(const Json& config, const std::vector<LinearModule>& modules,
                                      const TensorReader& tensors);

// "kv_cache_scheme" of any dialect: empty when absent or null.
Result<std::optional<KvRule>> read_kv_cache_scheme(const Json& config);

// --- typed access to JSON objects; `path` names the object in errors: "quantization_config.config_groups.group_0" ---

// The value of a key; nullptr when absent or null.
const Json* json_find(const Json& object, std::string_view key);
Result<std::optional<std::string>> json_text(const Json& object, std::string_view key, std::string_view path);
Result<std::optional<bool>> json_bool(const Json& object, std::string_view key, std::string_view path);
Result<std::optional<int64_t>> json_integer(const Json& object, std::string_view key, std::string_view path);
Result<std::vector<std::string>> json_texts(const Json& object, std::string_view key, std::string_view path);
// [rows, cols], or the text "128x128"; both from 1 to 65536.
Result<std::optional<std::pair<int, int>>> json_block(const Json& object, std::string_view key, std::string_view path);
// An error about the value of a key.
tl::unexpected<Error> json_fail(std::string_view what, std::string_view path, std::string_view key, const Json* value,
                                std::string_view expected);

// Whether `covers` holds for the module of some tensor ("model.norm" for "model.norm.weight"): a rule about a layer
// that is no linear module is no mistake.
bool covers_some_tensor(const TensorReader& tensors, FunctionRef<bool(std::string_view)> covers);

}  // namespace octavo
