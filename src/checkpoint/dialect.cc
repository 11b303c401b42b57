#include "checkpoint/dialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "checkpoint/dialect_kv.h"
#include "checkpoint/dialect_rules.h"
#include "checkpoint/dialect_tensors.h"
#include "checkpoint/outliers.h"

namespace octavo {
namespace {

// A dialect by its quant_method. A method that contains `name` is read by the first such row.
struct Dialect {
  std::string_view name;
  Result<DialectRules> (*read)(const Json& config, const std::vector<LinearModule>& modules,
                               const TensorReader& tensors);
};
constexpr Dialect kDialects[] = {
    {"fp8", read_fp8_rules},           {"compressed-tensors", read_compressed_tensors_rules},
    {"modelopt", read_modelopt_rules}, {"gptq", read_gptq_rules},
    {"awq", read_awq_rules},           {"mxfp4", read_mxfp4_rules},
};
constexpr std::string_view kSupported =
    "fp8, compressed-tensors, modelopt, gptq, awq, mxfp4, or a model without quantization_config";

// quantization_config in any of its places; nullptr when there is none.
const Json* find_config(const Json& config) {
  if (const Json* found = json_find(config, "quantization_config")) return found;
  if (const Json* text = json_find(config, "text_config"))
    if (const Json* found = json_find(*text, "quantization_config")) return found;
  return json_find(config, "compression_config");
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// The dialect's name as the config gives it.
Result<std::string> dialect_name(const Json& config) {
  if (!config.is_object())
    return json_fail("wrong type in config.json", "config", "quantization_config", &config, "an object");
  OCTAVO_ASSIGN(const auto method, json_text(config, "quant_method", "quantization_config"));
  if (method) return lower(*method);
  if (json_find(config, "quant_algo") != nullptr || json_find(config, "producer") != nullptr) return "modelopt";
  if (json_find(config, "config_groups") != nullptr) return "compressed-tensors";
  return json_fail("quantization dialect is not named", "quantization_config", "quant_method", nullptr, kSupported);
}

Result<DialectRules> read_rules(const Json& config_json, const std::vector<LinearModule>& modules,
                                const TensorReader& tensors) {
  const Json* config = find_config(config_json);
  if (config == nullptr) {
    DialectRules none{.dialect = "none", .modules = {}, .kv = {}, .notes = {}};
    none.modules.assign(modules.size(), {.quantized = false, .weight = {}, .activation = {}, .reason = "checkpoint"});
    return none;
  }
  OCTAVO_ASSIGN(const std::string name, dialect_name(*config));
  for (const Dialect& dialect : kDialects)
    if (name == dialect.name || (dialect.name == "modelopt" && name.starts_with("modelopt_")))
      return dialect.read(*config, modules, tensors);
  const std::string algorithm =
      json_text(*config, "quant_algo", "quantization_config").value_or(std::nullopt).value_or("");
  return fail({.what = "quantization dialect is not supported",
               .where = "quantization_config.quant_method",
               .found = algorithm.empty() ? name : fmt::format("{} ({})", name, algorithm),
               .expected = std::string(kSupported),
               .remedy = "take the unquantized model and quantize it with octavo"});
}

// One line for each stored type, however many modules have it.
void note_wide_types(const std::vector<LinearModule>& modules, const ModelConfig& config, const TensorReader& tensors,
                     std::vector<std::string>& notes) {
  std::map<std::string, int> counts;
  for (const LinearModule& module : modules) {
    const TensorEntry* entry = module.role == Role::kRouter ? nullptr : find_weight(module, config, tensors);
    if (entry != nullptr && (entry->stored_type == "F32" || entry->stored_type == "F16")) ++counts[entry->stored_type];
  }
  for (const auto& [type, count] : counts)
    notes.push_back(
        fmt::format("{} weights are stored as {} and run as BF16 (scheme float32 keeps them)", count, type));
}

}  // namespace

Result<StoredQuantization> read_quantization(const Json& config_json, const ModelConfig& config,
                                             const TensorReader& tensors) {
  return read_quantization(config_json, config.linear_modules(), config, tensors);
}

Result<StoredQuantization> read_quantization(const Json& config_json, const std::vector<LinearModule>& modules,
                                             const ModelConfig& config, const TensorReader& tensors) {
  OCTAVO_ASSIGN(DialectRules rules, read_rules(config_json, modules, tensors));
  StoredQuantization quantization{.dialect = rules.dialect, .plan = {}, .packed = {}};
  PrecisionPlan& plan = quantization.plan;
  plan.scheme = "checkpoint";
  plan.notes = std::move(rules.notes);
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleRule& rule = rules.modules[i];
    LinearPlan linear;
    if (const TensorEntry* packed = find_packed_weight(modules[i], rule, tensors)) {
      OCTAVO_ASSIGN(PackedWeight weight, check_packed(modules[i], rule, *packed, tensors));
      linear = weight.plan;
      quantization.packed.insert_or_assign(modules[i].name, std::move(weight));
    } else {
      OCTAVO_ASSIGN(linear, resolve_linear(modules[i], rule, rules.dialect, config, tensors, plan.notes));
    }
    plan.linears.insert_or_assign(modules[i].name, std::move(linear));
  }
  if (const Json* written = find_config(config_json))
    OCTAVO_TRY(plan_outliers(*written, rules.dialect, modules, tensors, plan));
  if (rules.dialect == "none") note_wide_types(modules, config, tensors, plan.notes);
  OCTAVO_TRY(plan_kv(rules.kv, config, tensors, plan));
  return quantization;
}

}  // namespace octavo
