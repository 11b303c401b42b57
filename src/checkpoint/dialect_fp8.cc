// The "fp8" dialect: DeepSeek, Qwen, fine-grained FP8 of transformers, vLLM's own. Dequantized weight = code x scale,
// also where the tensor is called weight_scale_inv.
#include <fmt/format.h>

#include "checkpoint/dialect_rules.h"
#include "checkpoint/module_list.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

// The formats that the config gives every module it does not ignore.
Result<ModuleRule> read_formats(const Json& config, std::vector<std::string>& notes) {
  OCTAVO_ASSIGN(const auto format, json_text(config, "fmt", kConfigPath));
  if (format.value_or("e4m3") != "e4m3")
    return json_fail("FP8 format is not supported", kConfigPath, "fmt", json_find(config, "fmt"), "e4m3");
  OCTAVO_ASSIGN(const auto scheme, json_text(config, "activation_scheme", kConfigPath));
  if (scheme.value_or("dynamic") != "dynamic" && scheme.value_or("dynamic") != "static")
    return json_fail("unknown activation scheme", kConfigPath, "activation_scheme",
                     json_find(config, "activation_scheme"), "dynamic or static");
  if (!scheme) notes.push_back("quantization_config has no activation_scheme: taken as dynamic");
  const bool is_static = scheme.value_or("dynamic") == "static";
  OCTAVO_ASSIGN(const auto scale_format, json_text(config, "scale_fmt", kConfigPath));
  const std::string scale_name = scale_format.value_or("float");
  if (scale_name != "ue8m0" && scale_name != "float" && scale_name != "float32")
    return json_fail("unknown scale format", kConfigPath, "scale_fmt", json_find(config, "scale_fmt"),
                     "ue8m0 or float");
  const ElementType scale = scale_name == "ue8m0" ? ElementType::kE8m0 : ElementType::kF32;
  OCTAVO_ASSIGN(const auto block, json_block(config, "weight_block_size", kConfigPath));
  if (block && is_static)
    return json_fail("static activations do not go with blocks", kConfigPath, "activation_scheme",
                     json_find(config, "activation_scheme"), "dynamic, where weight_block_size is set");
  ModuleRule rule{.quantized = true, .weight = {}, .activation = {}, .reason = "checkpoint"};
  if (block) {
    rule.weight = weight_format(block_format(ElementType::kE4m3, block->first, block->second));
    // scale_fmt is about activations; the weights' scales are used as stored.
    rule.activation = block_format(ElementType::kE4m3, 1, block->second, scale);
  } else {
    rule.weight = weight_format(tensor_wide_format(ElementType::kE4m3));
    rule.shape_decides = true;
    rule.activation = row_format(ElementType::kE4m3);
    rule.activation.scale = scale;
    if (is_static) rule.activation = weight_format(tensor_wide_format(ElementType::kE4m3));
  }
  return rule;
}

}  // namespace

Result<DialectRules> read_fp8_rules(const Json& config, const std::vector<LinearModule>& modules,
                                    const TensorReader& tensors) {
  DialectRules rules{.dialect = "fp8", .modules = {}, .kv = {}, .notes = {}};
  OCTAVO_ASSIGN(const ModuleRule formats, read_formats(config, rules.notes));
  OCTAVO_ASSIGN(auto ignored, ModuleList::read(config, {"ignored_layers", "modules_to_not_convert"}, kConfigPath));
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(const std::string* entry, ignored.find(module.name));
    rules.modules.push_back(entry == nullptr ? formats : ignored_rule(*entry));
  }
  ignored.note_unused(tensors, rules.notes);
  OCTAVO_ASSIGN(rules.kv, read_kv_cache_scheme(config));
  return rules;
}

}  // namespace octavo
