// The "modelopt" dialect (NVIDIA ModelOpt): one algorithm for all modules, or one for each (MIXED_PRECISION).
#include <fmt/format.h>

#include "checkpoint/dialect_rules.h"
#include "checkpoint/module_list.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

constexpr auto kE4 = ElementType::kE4m3, kE2 = ElementType::kE2m1, kE8 = ElementType::kE8m0;

struct Algorithm {
  std::string_view name;
  TensorFormat weight, activation;
  const PackedLayout* layout;
  std::string_view reason;
  bool shape_groups = false;
};

const std::vector<Algorithm>& algorithms() {
  static const TensorFormat kBf16 = plain_format(ElementType::kBf16);
  static const TensorFormat kNvfp4 = weight_format(group_format(kE2, 16, kE4));
  static const TensorFormat kInt4 = weight_format(group_format(ElementType::kInt4, 128, ElementType::kF32));
  static const std::vector<Algorithm> kAlgorithms = {
      {"FP8", weight_format(tensor_wide_format(kE4)), weight_format(tensor_wide_format(kE4)), nullptr, "checkpoint"},
      {"FP8_PER_CHANNEL_PER_TOKEN", weight_format(row_format(kE4)), row_format(kE4), nullptr, "checkpoint"},
      {"FP8_PB_WO", weight_format(block_format(kE4, 128, 128)), kBf16, nullptr, "checkpoint"},
      {"MXFP8", weight_format(group_format(kE4, 32, kE8)), group_format(kE4, 32, kE8), nullptr, "checkpoint"},
      {"NVFP4", kNvfp4, kBf16, &kNvfp4Factor, "checkpoint, activations BF16 instead of four bits"},
      {"W4A16_NVFP4", kNvfp4, kBf16, &kNvfp4Factor, "checkpoint"},
      {"W4A16_AWQ", kInt4, kBf16, &kNibblesAlongOut, "checkpoint", true},
      {"INT4_AWQ", kInt4, kBf16, &kNibblesAlongOut, "checkpoint", true},
  };
  return kAlgorithms;
}

// An algorithm by its name, which is written in capitals or not.
Result<ModuleRule> rule_of(std::string name, std::string_view path, const Json& object) {
  std::string names;
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  for (const Algorithm& row : algorithms()) {
    if (row.name == name)
      return ModuleRule{.quantized = true,
                        .weight = row.weight,
                        .activation = row.activation,
                        .reason = std::string(row.reason),
                        .layout = row.layout,
                        .shape_groups = row.shape_groups};
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return json_fail("quantization algorithm is not supported", path, "quant_algo", json_find(object, "quant_algo"),
                   "one of " + names + ", MIXED_PRECISION");
}

// MIXED_PRECISION: an algorithm for each module by name; a module without one stays wide.
Result<ModuleRule> mixed_rule(const Json& config, const LinearModule& module) {
  const std::string path = std::string(kConfigPath) + ".quantized_layers";
  const Json* layers = json_find(config, "quantized_layers");
  if (layers == nullptr || !layers->is_object())
    return json_fail("mixed precision without its layers", kConfigPath, "quantized_layers", layers,
                     "an object of modules");
  const Json* entry = json_find(*layers, module.name);
  if (entry == nullptr) return ignored_rule("not among quantized_layers");
  if (!entry->is_object()) return json_fail("wrong type in config.json", path, module.name, entry, "an object");
  OCTAVO_ASSIGN(const auto name, json_text(*entry, "quant_algo", path));
  return rule_of(name.value_or(""), path + "." + module.name, *entry);
}

// "kv_cache_quant_algo" of hf_quant_config.json, or "kv_cache_scheme" of config.json.
Result<std::optional<KvRule>> read_kv(const Json& config) {
  OCTAVO_ASSIGN(const auto name, json_text(config, "kv_cache_quant_algo", kConfigPath));
  if (!name) return read_kv_cache_scheme(config);
  if (*name == "FP8") return KvRule{};
  return json_fail("KV cache algorithm is not supported", kConfigPath, "kv_cache_quant_algo",
                   json_find(config, "kv_cache_quant_algo"), "FP8 or null");
}

}  // namespace

Result<DialectRules> read_modelopt_rules(const Json& config, const std::vector<LinearModule>& modules,
                                         const TensorReader& tensors) {
  DialectRules rules{.dialect = "modelopt", .modules = {}, .kv = {}, .notes = {}};
  OCTAVO_ASSIGN(const auto name, json_text(config, "quant_algo", kConfigPath));
  OCTAVO_ASSIGN(auto ignored, ModuleList::read(config, {"ignore", "exclude_modules"}, kConfigPath));
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(const std::string* entry, ignored.find(module.name));
    if (entry != nullptr) {
      rules.modules.push_back(ignored_rule(*entry));
      continue;
    }
    const bool mixed = name.value_or("") == "MIXED_PRECISION";
    OCTAVO_ASSIGN(ModuleRule rule,
                  mixed ? mixed_rule(config, module) : rule_of(name.value_or(""), kConfigPath, config));
    rules.modules.push_back(std::move(rule));
  }
  ignored.note_unused(tensors, rules.notes);
  OCTAVO_ASSIGN(rules.kv, read_kv(config));
  return rules;
}

}  // namespace octavo
