// The "fp8" dialect: DeepSeek, Qwen, fine-grained FP8 of transformers, vLLM's own. Dequantized weight = code x scale,
// also where the tensor is called weight_scale_inv.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/dialect_rules.h"
#include "precision/name_rule.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

constexpr std::string_view kPath = "quantization_config";

// `entry` covers `name` when it is the name, a part of it or a parent of it, cut at dots: "self_attn" covers
// "model.layers.0.self_attn.q_proj", "gate" does not cover "mlp.gate_proj". "model." in front may be missing in either.
bool covers_path(std::string_view entry, std::string_view name) {
  if (entry.empty()) return false;
  for (size_t at = name.find(entry); at != std::string_view::npos; at = name.find(entry, at + 1)) {
    const bool starts = at == 0 || name[at - 1] == '.';
    const size_t end = at + entry.size();
    if (starts && (end == name.size() || name[end] == '.')) return true;
  }
  return entry.starts_with("model.") && covers_path(entry.substr(6), name) && !name.starts_with("model.");
}

bool covers(const std::string& entry, std::string_view name) {
  if (covers_path(entry, name)) return true;
  // Fused names stand for their parts.
  struct Fused {
    std::string_view fused;
    std::initializer_list<std::string_view> parts;
  };
  for (const Fused& f :
       {Fused{"qkv_proj", {"q_proj", "k_proj", "v_proj"}}, Fused{"gate_up_proj", {"gate_proj", "up_proj"}}}) {
    if (!entry.ends_with(f.fused)) continue;
    const std::string stem = entry.substr(0, entry.size() - f.fused.size());
    for (const std::string_view part : f.parts)
      if (covers_path(stem + std::string(part), name)) return true;
  }
  return false;
}

struct Ignored {
  std::string text;
  std::optional<NameRule> pattern;  // "re:..." entries
  bool hit = false;
};

Result<bool> matches(const Ignored& entry, std::string_view name) {
  if (entry.pattern) return entry.pattern->matches(name);
  return covers(entry.text, name);
}

Result<std::vector<Ignored>> read_ignored(const Json& config) {
  std::vector<Ignored> ignored;
  for (const std::string_view key : {"ignored_layers", "modules_to_not_convert"}) {
    OCTAVO_ASSIGN(const auto texts, json_texts(config, key, kPath));
    for (const std::string& text : texts) {
      const auto same = [&](const Ignored& i) { return i.text == text; };
      if (std::any_of(ignored.begin(), ignored.end(), same)) continue;
      Ignored entry{text, std::nullopt};
      if (text.starts_with("re:")) {
        OCTAVO_ASSIGN(entry.pattern, NameRule::parse(text));
      }
      ignored.push_back(std::move(entry));
    }
  }
  return ignored;
}

// The formats that the config gives every module it does not ignore.
Result<ModuleRule> read_formats(const Json& config, std::vector<std::string>& notes) {
  OCTAVO_ASSIGN(const auto format, json_text(config, "fmt", kPath));
  if (format.value_or("e4m3") != "e4m3")
    return json_fail("FP8 format is not supported", kPath, "fmt", json_find(config, "fmt"), "e4m3");
  OCTAVO_ASSIGN(const auto scheme, json_text(config, "activation_scheme", kPath));
  if (scheme.value_or("dynamic") != "dynamic" && scheme.value_or("dynamic") != "static")
    return json_fail("unknown activation scheme", kPath, "activation_scheme", json_find(config, "activation_scheme"),
                     "dynamic or static");
  if (!scheme) notes.push_back("quantization_config has no activation_scheme: taken as dynamic");
  const bool is_static = scheme.value_or("dynamic") == "static";
  OCTAVO_ASSIGN(const auto scale_format, json_text(config, "scale_fmt", kPath));
  const std::string scale_name = scale_format.value_or("float");
  if (scale_name != "ue8m0" && scale_name != "float" && scale_name != "float32")
    return json_fail("unknown scale format", kPath, "scale_fmt", json_find(config, "scale_fmt"), "ue8m0 or float");
  const ElementType scale = scale_name == "ue8m0" ? ElementType::kE8m0 : ElementType::kF32;
  OCTAVO_ASSIGN(const auto block, json_block(config, "weight_block_size", kPath));
  if (block && is_static)
    return json_fail("static activations do not go with blocks", kPath, "activation_scheme",
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
  OCTAVO_ASSIGN(auto ignored, read_ignored(config));
  for (const LinearModule& module : modules) {
    ModuleRule rule = formats;
    for (Ignored& entry : ignored) {
      OCTAVO_ASSIGN(const bool hit, matches(entry, module.name));
      if (!hit) continue;
      entry.hit = true;
      if (rule.quantized)
        rule = {.quantized = false, .weight = {}, .activation = {}, .reason = "ignored: " + entry.text};
    }
    rules.modules.push_back(std::move(rule));
  }
  for (const Ignored& entry : ignored)
    if (!entry.hit &&
        !covers_some_tensor(tensors, [&](std::string_view name) { return matches(entry, name).value_or(false); }))
      rules.notes.push_back(
          fmt::format("quantization_config: '{}' among the modules not to convert matches no module", entry.text));
  OCTAVO_ASSIGN(rules.kv, read_kv_cache_scheme(config));
  return rules;
}

}  // namespace octavo
