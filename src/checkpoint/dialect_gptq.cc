// The "gptq" and "awq" dialects: integer weights in groups along the inputs, transposed and packed into words; and
// "mxfp4" (gpt-oss), whose linear layers are wide and whose experts are not.
#include <fmt/format.h>

#include "checkpoint/dialect_rules.h"
#include "checkpoint/module_list.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

// What a config, or one of its exceptions, says of some modules.
struct Settings {
  int64_t bits = 4, group_size = 128;
};

// `either` of two spellings of a key.
Result<std::optional<int64_t>> integer_of(const Json& object, std::string_view key, std::string_view older,
                                          std::string_view path) {
  OCTAVO_ASSIGN(const auto value, json_integer(object, key, path));
  if (value) return value;
  return json_integer(object, older, path);
}

Result<Settings> read_settings(const Json& object, Settings base, std::string_view path) {
  OCTAVO_ASSIGN(const auto bits, integer_of(object, "bits", "w_bit", path));
  base.bits = bits.value_or(base.bits);
  if (base.bits != 4 && base.bits != 8)
    return json_fail("number of bits is not supported", path, "bits", json_find(object, "bits"), "4 or 8");
  OCTAVO_ASSIGN(const auto group, integer_of(object, "group_size", "q_group_size", path));
  base.group_size = group.value_or(base.group_size);
  if (base.group_size != -1 && (base.group_size < 1 || base.group_size > 65536))
    return json_fail("bad group size", path, "group_size", json_find(object, "group_size"), "-1, or 1 to 65536");
  return base;
}

ModuleRule make_rule(const Settings& settings, const PackedLayout& layout) {
  const ElementType element = settings.bits == 4 ? ElementType::kInt4 : ElementType::kInt8;
  TensorFormat weight = settings.group_size == -1
                            ? row_format(element)
                            : group_format(element, static_cast<int>(settings.group_size), ElementType::kF16);
  weight.zero_points = true;  // unless all of them turn out to be the middle
  return {.quantized = true,
          .weight = weight_format(weight),
          .activation = plain_format(ElementType::kBf16),
          .reason = "checkpoint",
          .layout = &layout};
}

// "dynamic": patterns of modules that are left out ("-:") or have settings of their own ("+:").
struct Exception {
  NameRule pattern;
  std::string text;
  bool left_out;
  Settings settings;
};

Result<std::vector<Exception>> read_exceptions(const Json& config, const Settings& base) {
  std::vector<Exception> exceptions;
  const Json* dynamic = json_find(config, "dynamic");
  if (dynamic == nullptr) return exceptions;
  const std::string path = std::string(kConfigPath) + ".dynamic";
  if (!dynamic->is_object())
    return json_fail("wrong type in config.json", kConfigPath, "dynamic", dynamic, "an object");
  for (const auto& [key, value] : dynamic->items()) {
    if (!value.is_object()) return json_fail("wrong type in config.json", path, key, &value, "an object");
    const bool signed_key = key.starts_with("-:") || key.starts_with("+:");
    OCTAVO_ASSIGN(NameRule pattern, NameRule::parse("re:" + (signed_key ? key.substr(2) : key)));
    OCTAVO_ASSIGN(const Settings settings, read_settings(value, base, path + "." + key));
    exceptions.push_back({std::move(pattern), key, key.starts_with("-:"), settings});
  }
  return exceptions;
}

Result<ModuleRule> gptq_rule(const LinearModule& module, const Settings& base,
                             const std::vector<Exception>& exceptions) {
  for (const Exception& exception : exceptions) {
    OCTAVO_ASSIGN(const bool hit, exception.pattern.matches(module.name));
    if (!hit) continue;
    if (exception.left_out) return ignored_rule(exception.text);
    return make_rule(exception.settings, kGptqWords);
  }
  return make_rule(base, kGptqWords);
}

}  // namespace

Result<DialectRules> read_gptq_rules(const Json& config, const std::vector<LinearModule>& modules,
                                     const TensorReader&) {
  DialectRules rules{.dialect = "gptq", .modules = {}, .kv = {}, .notes = {}};
  OCTAVO_ASSIGN(const Settings base, read_settings(config, {}, kConfigPath));
  OCTAVO_ASSIGN(const auto exceptions, read_exceptions(config, base));
  OCTAVO_ASSIGN(const auto format, json_text(config, "checkpoint_format", kConfigPath));
  const std::string version = format.value_or("gptq");
  if (version != "gptq" && version != "gptq_v2")
    return json_fail("GPTQ layout is not supported", kConfigPath, "checkpoint_format",
                     json_find(config, "checkpoint_format"), "gptq or gptq_v2");
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(ModuleRule rule, gptq_rule(module, base, exceptions));
    rule.zeros_less_one = version == "gptq";
    rules.modules.push_back(std::move(rule));
  }
  return rules;
}

Result<DialectRules> read_awq_rules(const Json& config, const std::vector<LinearModule>& modules,
                                    const TensorReader& tensors) {
  DialectRules rules{.dialect = "awq", .modules = {}, .kv = {}, .notes = {}};
  OCTAVO_ASSIGN(const Settings settings, read_settings(config, {}, kConfigPath));
  if (settings.bits != 4) return json_fail("number of bits is not supported", kConfigPath, "bits", nullptr, "4");
  OCTAVO_ASSIGN(const auto version, json_text(config, "version", kConfigPath));
  std::string layout = version.value_or("gemm");
  for (char& c : layout) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (layout != "gemm")
    return json_fail("AWQ layout is not supported", kConfigPath, "version", json_find(config, "version"), "gemm");
  OCTAVO_ASSIGN(auto ignored, ModuleList::read(config, {"modules_to_not_convert"}, kConfigPath));
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(const std::string* entry, ignored.find(module.name));
    rules.modules.push_back(entry == nullptr ? make_rule(settings, kAwqWords) : ignored_rule(*entry));
  }
  ignored.note_unused(tensors, rules.notes);
  return rules;
}

Result<DialectRules> read_mxfp4_rules(const Json& config, const std::vector<LinearModule>& modules,
                                      const TensorReader& tensors) {
  DialectRules rules{.dialect = "mxfp4", .modules = {}, .kv = {}, .notes = {}};
  OCTAVO_ASSIGN(auto ignored, ModuleList::read(config, {"modules_to_not_convert"}, kConfigPath));
  const ModuleRule experts{.quantized = true,
                           .weight = weight_format(group_format(ElementType::kE2m1, 32, ElementType::kE8m0)),
                           .activation = plain_format(ElementType::kBf16),
                           .reason = "checkpoint",
                           .layout = &kMxfp4Experts};
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(const std::string* entry, ignored.find(module.name));
    rules.modules.push_back(entry == nullptr ? experts : ignored_rule(*entry));
  }
  ignored.note_unused(tensors, rules.notes);
  return rules;
}

}  // namespace octavo
