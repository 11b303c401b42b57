// The "compressed-tensors" dialect (llm-compressor), of which the uncompressed eight-bit formats are read: float-,
// naive- and int-quantized. Each module takes the first group that names it, else the group of class "Linear".
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/dialect_rules.h"
#include "precision/name_rule.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

constexpr std::string_view kFormats = "float-quantized, naive-quantized or int-quantized";

// A target or ignore entry, and whether it matched something.
struct Target {
  NameRule rule;
  bool is_class;  // "Linear"
  bool hit = false;
};

struct Group {
  std::string name;
  std::vector<Target> targets;
  Result<ModuleRule> formats;  // an error matters only where a module takes the group
};

struct Args {
  std::string type, strategy;
  bool dynamic = false;
  int64_t group_size = -1;
  std::optional<std::pair<int, int>> block;
};

// QuantizationArgs: eight bits, symmetric. The strategy is inferred where it is absent.
Result<Args> read_args(const Json& object, const std::string& path) {
  Args args;
  if (!object.is_object()) return json_fail("wrong type in config.json", path, "", &object, "an object");
  OCTAVO_ASSIGN(const auto bits, json_integer(object, "num_bits", path));
  if (bits.value_or(8) != 8)
    return json_fail("number of bits is not supported", path, "num_bits", json_find(object, "num_bits"), "8");
  OCTAVO_ASSIGN(const auto type, json_text(object, "type", path));
  args.type = type.value_or("int");
  if (args.type != "float" && args.type != "int")
    return json_fail("unknown type", path, "type", json_find(object, "type"), "float or int");
  OCTAVO_ASSIGN(const auto symmetric, json_bool(object, "symmetric", path));
  if (!symmetric.value_or(true))
    return json_fail("zero points are not supported", path, "symmetric", json_find(object, "symmetric"), "true");
  const Json* dynamic = json_find(object, "dynamic");
  if (dynamic != nullptr && !dynamic->is_boolean())
    return json_fail("scale time is not supported", path, "dynamic", dynamic, "true or false");
  args.dynamic = dynamic != nullptr && dynamic->get<bool>();
  OCTAVO_ASSIGN(const auto group_size, json_integer(object, "group_size", path));
  args.group_size = group_size.value_or(0);
  OCTAVO_ASSIGN(args.block, json_block(object, "block_structure", path));
  OCTAVO_ASSIGN(const auto strategy, json_text(object, "strategy", path));
  const std::string inferred = args.block            ? "block"
                               : args.group_size > 0 ? "group"
                               : args.group_size < 0 ? "channel"
                                                     : "tensor";
  args.strategy = strategy.value_or(inferred);
  if ((args.strategy == "block") != args.block.has_value())
    return json_fail("strategy block and block_structure go together", path, "block_structure",
                     json_find(object, "block_structure"), "a block size with strategy block only");
  return args;
}

ElementType element_of(const Args& args) {
  return args.type == "float" ? ElementType::kE4m3 : ElementType::kInt8;
}

Result<TensorFormat> read_weight_format(const Json& weights, const std::string& path) {
  OCTAVO_ASSIGN(const Args args, read_args(weights, path));
  if (args.dynamic)
    return json_fail("weights cannot be dynamic", path, "dynamic", json_find(weights, "dynamic"), "false");
  const ElementType element = element_of(args);
  if (args.strategy == "tensor") return weight_format(tensor_wide_format(element));
  if (args.strategy == "channel") return weight_format(row_format(element));
  if (args.strategy == "block" && element == ElementType::kE4m3)
    return weight_format(block_format(element, args.block->first, args.block->second));
  return json_fail("weight strategy is not supported", path, "strategy", json_find(weights, "strategy"),
                   element == ElementType::kE4m3 ? "tensor, channel or block" : "tensor or channel");
}

Result<TensorFormat> read_activation_format(const Json* activations, const std::string& path) {
  if (activations == nullptr) return plain_format(ElementType::kBf16);
  OCTAVO_ASSIGN(const Args args, read_args(*activations, path));
  const ElementType element = element_of(args);
  if (!args.dynamic) {
    if (args.strategy == "tensor") return weight_format(tensor_wide_format(element));
    return json_fail("static activation scales are read per tensor only", path, "strategy",
                     json_find(*activations, "strategy"), "tensor, or dynamic true");
  }
  // One dynamic scale for a whole batch would make a token's result depend on its neighbours: per token instead.
  if (args.strategy == "token" || args.strategy == "tensor") return row_format(element);
  if (args.strategy == "group" && args.group_size > 0 && args.group_size <= 65536)
    return block_format(element, 1, static_cast<int>(args.group_size));
  return json_fail("activation strategy is not supported", path, "strategy", json_find(*activations, "strategy"),
                   "token, tensor, or group with a group_size");
}

Result<ModuleRule> read_group_formats(const Json& group, const std::string& path, const std::string& outer_format) {
  OCTAVO_ASSIGN(const auto own_format, json_text(group, "format", path));
  const std::string format = own_format.value_or(outer_format);
  const Json* weights = json_find(group, "weights");
  if (weights == nullptr)
    return ModuleRule{
        .quantized = false, .weight = {}, .activation = {}, .reason = "checkpoint: group without weights"};
  const bool known =
      format.empty() || format == "float-quantized" || format == "naive-quantized" || format == "int-quantized";
  if (!known)
    return fail({.what = "compressed-tensors format is not supported",
                 .where = path,
                 .found = format,
                 .expected = std::string(kFormats)});
  ModuleRule rule{.quantized = true, .weight = {}, .activation = {}, .reason = "checkpoint"};
  OCTAVO_ASSIGN(rule.weight, read_weight_format(*weights, path + ".weights"));
  OCTAVO_ASSIGN(rule.activation,
                read_activation_format(json_find(group, "input_activations"), path + ".input_activations"));
  const Json* activations = json_find(group, "input_activations");
  if (activations != nullptr && rule.activation.granularity == Granularity::kRow &&
      json_text(*activations, "strategy", path).value_or(std::nullopt).value_or("token") == "tensor")
    rule.reason = "checkpoint, dynamic activations per token instead of per tensor";
  const bool is_float = rule.weight.element == ElementType::kE4m3;
  if ((format == "float-quantized" && !is_float) || (format == "int-quantized" && is_float))
    return json_fail("format and weight type disagree", path, "format", json_find(group, "format"),
                     is_float ? "float-quantized" : "int-quantized");
  return rule;
}

Result<std::vector<Target>> read_targets(const Json& object, std::string_view key, const std::string& path) {
  OCTAVO_ASSIGN(const auto texts, json_texts(object, key, path));
  std::vector<Target> targets;
  for (const std::string& text : texts) {
    OCTAVO_ASSIGN(NameRule rule, NameRule::parse(text));
    targets.push_back({std::move(rule), text == "Linear", false});
  }
  return targets;
}

Result<std::vector<Group>> read_groups(const Json& config, const std::string& format) {
  const std::string path = "quantization_config.config_groups";
  const Json* object = json_find(config, "config_groups");
  if (object == nullptr || !object->is_object())
    return json_fail("no quantization groups", "quantization_config", "config_groups", object, "an object of groups");
  std::vector<Group> groups;
  for (const auto& [name, group] : object->items()) {
    const std::string group_path = path + "." + name;
    if (!group.is_object()) return json_fail("wrong type in config.json", path, name, &group, "an object");
    OCTAVO_ASSIGN(auto targets, read_targets(group, "targets", group_path));
    // Attention groups describe the KV cache, not linear layers.
    const bool attention = targets.size() == 1 && targets[0].rule.text().ends_with("Attention");
    if (attention) continue;
    groups.push_back({name, std::move(targets), read_group_formats(group, group_path, format)});
  }
  return groups;
}

// Names and patterns first, then the class. Every target that matches is marked, also where an earlier one decides.
Result<const Group*> group_of(const LinearModule& module, std::vector<Group>& groups) {
  const Group *by_name = nullptr, *by_class = nullptr;
  for (Group& group : groups)
    for (Target& target : group.targets) {
      OCTAVO_ASSIGN(const bool named, target.rule.matches(module.name));
      if (named && by_name == nullptr) by_name = &group;
      if (target.is_class && by_class == nullptr) by_class = &group;
      target.hit = target.hit || named || target.is_class;
    }
  return by_name != nullptr ? by_name : by_class;
}

// Sparsity and online transforms change the numbers: never ignored.
Result<void> refuse_extras(const Json& config) {
  if (const Json* sparsity = json_find(config, "sparsity_config"); sparsity != nullptr && !sparsity->empty()) {
    OCTAVO_ASSIGN(const auto format, json_text(*sparsity, "format", "quantization_config.sparsity_config"));
    if (format.value_or("") != "dense")
      return json_fail("sparse weights are not supported", "quantization_config", "sparsity_config", sparsity, "{}");
  }
  const Json* transform = json_find(config, "transform_config");
  const Json* groups = transform == nullptr ? nullptr : json_find(*transform, "config_groups");
  if (groups != nullptr && !groups->empty())
    return json_fail("online transforms are not supported", "quantization_config", "transform_config", transform, "{}");
  return {};
}

void note_unmatched(const std::vector<Target>& targets, std::string_view what, const TensorReader& tensors,
                    std::vector<std::string>& notes) {
  for (const Target& target : targets) {
    const auto covers = [&](std::string_view name) { return target.rule.matches(name).value_or(false); };
    if (!target.hit && !covers_some_tensor(tensors, covers))
      notes.push_back(fmt::format("quantization_config: {} '{}' matches no module", what, target.rule.text()));
  }
}

}  // namespace

Result<DialectRules> read_compressed_tensors_rules(const Json& config, const std::vector<LinearModule>& modules,
                                                   const TensorReader& tensors) {
  DialectRules rules{.dialect = "compressed-tensors", .modules = {}, .kv = {}, .notes = {}};
  OCTAVO_TRY(refuse_extras(config));
  OCTAVO_ASSIGN(auto format, json_text(config, "format", "quantization_config"));
  if (format.value_or("") == "mixed-precision" || format.value_or("") == "dense") format.reset();
  OCTAVO_ASSIGN(auto groups, read_groups(config, format.value_or("")));
  OCTAVO_ASSIGN(auto ignored, read_targets(config, "ignore", "quantization_config"));
  for (const LinearModule& module : modules) {
    ModuleRule rule{.quantized = false, .weight = {}, .activation = {}, .reason = "checkpoint: in no group"};
    bool is_ignored = false;
    for (Target& entry : ignored) {
      OCTAVO_ASSIGN(const bool hit, entry.rule.matches(module.name));
      if (!hit && !entry.is_class) continue;
      entry.hit = true;
      if (!is_ignored) rule.reason = "ignored: " + entry.rule.text();
      is_ignored = true;
    }
    OCTAVO_ASSIGN(const Group* group, group_of(module, groups));
    if (group != nullptr && !is_ignored) {
      if (!group->formats) return fail(group->formats.error());
      rule = *group->formats;
    }
    rules.modules.push_back(std::move(rule));
  }
  note_unmatched(ignored, "ignore entry", tensors, rules.notes);
  for (const Group& group : groups)
    note_unmatched(group.targets, fmt::format("target of {}", group.name), tensors, rules.notes);
  OCTAVO_ASSIGN(rules.kv, read_kv_cache_scheme(config));
  return rules;
}

}  // namespace octavo
