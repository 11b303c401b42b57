// The "compressed-tensors" dialect (llm-compressor): a table of its formats. Each module takes the first group that
// names it, else the group of class "Linear".
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/dialect_rules.h"
#include "precision/name_rule.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

// A format: which weights it holds, and how they lie. `bits` and `type` of 0 and "": any of those Octavo has.
struct Format {
  std::string_view name;
  std::string_view type;
  int bits;
  const PackedLayout* layout;
};
constexpr Format kFormats[] = {
    {"float-quantized", "float", 8, nullptr},
    {"naive-quantized", "", 8, nullptr},
    {"int-quantized", "int", 8, nullptr},
    {"mxfp8-quantized", "float", 8, nullptr},
    {"pack-quantized", "int", 0, &kWordsAlongRows},
    {"nvfp4-pack-quantized", "float", 4, &kNvfp4Divisor},
    {"mxfp4-pack-quantized", "float", 4, &kMxfp4Bytes},
};

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
  int64_t bits = 8;
  bool dynamic = false, symmetric = true, exponents = false;  // exponents: the scales are powers of two
  int64_t group_size = -1;
  std::optional<std::pair<int, int>> block;
};

// QuantizationArgs: four or eight bits. The strategy is inferred where it is absent.
Result<Args> read_args(const Json& object, const std::string& path) {
  Args args;
  if (!object.is_object()) return json_fail("wrong type in config.json", path, "", &object, "an object");
  OCTAVO_ASSIGN(const auto bits, json_integer(object, "num_bits", path));
  args.bits = bits.value_or(8);
  if (args.bits != 8 && args.bits != 4)
    return json_fail("number of bits is not supported", path, "num_bits", json_find(object, "num_bits"), "4 or 8");
  OCTAVO_ASSIGN(const auto type, json_text(object, "type", path));
  args.type = type.value_or("int");
  if (args.type != "float" && args.type != "int")
    return json_fail("unknown type", path, "type", json_find(object, "type"), "float or int");
  OCTAVO_ASSIGN(const auto symmetric, json_bool(object, "symmetric", path));
  args.symmetric = symmetric.value_or(true);
  const Json* dynamic = json_find(object, "dynamic");
  const bool local = dynamic != nullptr && dynamic->is_string() && dynamic->get_ref<const std::string&>() == "local";
  if (dynamic != nullptr && !dynamic->is_boolean() && !local)
    return json_fail("scale time is not supported", path, "dynamic", dynamic, "true, false or \"local\"");
  args.dynamic = local || (dynamic != nullptr && dynamic->get<bool>());
  OCTAVO_ASSIGN(const auto scale_type, json_text(object, "scale_dtype", path));
  args.exponents = scale_type.value_or("") == "torch.uint8";
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
  if (args.bits == 4) return args.type == "float" ? ElementType::kE2m1 : ElementType::kInt4;
  return args.type == "float" ? ElementType::kE4m3 : ElementType::kInt8;
}

bool has_groups(const Args& args) {
  return (args.strategy == "group" || args.strategy == "tensor_group") && args.group_size > 0 &&
         args.group_size <= 65536;
}

// Groups along the inputs, with the scales that the strategy and the layout imply.
TensorFormat grouped_format(const Args& args) {
  const ElementType scale = args.exponents                           ? ElementType::kE8m0
                            : args.strategy == "tensor_group"        ? ElementType::kE4m3
                            : element_of(args) == ElementType::kE4m3 ? ElementType::kF32
                                                                     : ElementType::kBf16;
  return group_format(element_of(args), static_cast<int>(args.group_size), scale, !args.symmetric);
}

Result<TensorFormat> read_weight_format(const Json& weights, const std::string& path, const PackedLayout* layout) {
  OCTAVO_ASSIGN(const Args args, read_args(weights, path));
  if (!args.symmetric && (layout == nullptr || layout->zeros.empty()))
    return json_fail("zero points are not supported", path, "symmetric", json_find(weights, "symmetric"), "true");
  if (args.dynamic)
    return json_fail("weights cannot be dynamic", path, "dynamic", json_find(weights, "dynamic"), "false");
  const ElementType element = element_of(args);
  if (args.strategy == "tensor") return weight_format(tensor_wide_format(element));
  if (args.strategy == "channel") {
    TensorFormat format = weight_format(row_format(element));
    format.zero_points = !args.symmetric;
    return format;
  }
  if (has_groups(args) && (layout != nullptr || args.exponents)) return weight_format(grouped_format(args));
  if (args.strategy == "block" && element == ElementType::kE4m3)
    return weight_format(block_format(element, args.block->first, args.block->second));
  return json_fail("weight strategy is not supported", path, "strategy", json_find(weights, "strategy"),
                   element == ElementType::kE4m3 ? "tensor, channel or block" : "tensor or channel");
}

Result<TensorFormat> read_activation_format(const Json* activations, const std::string& path) {
  if (activations == nullptr) return plain_format(ElementType::kBf16);
  OCTAVO_ASSIGN(const Args args, read_args(*activations, path));
  if (args.bits == 4) return plain_format(ElementType::kBf16);
  if (!args.symmetric)
    return json_fail("zero points are not supported", path, "symmetric", json_find(*activations, "symmetric"), "true");
  const ElementType element = element_of(args);
  if (!args.dynamic) {
    if (args.strategy == "tensor") return weight_format(tensor_wide_format(element));
    return json_fail("static activation scales are read per tensor only", path, "strategy",
                     json_find(*activations, "strategy"), "tensor, or dynamic true");
  }
  // One dynamic scale for a whole batch would make a token's result depend on its neighbours: per token instead.
  if (args.strategy == "token" || args.strategy == "tensor") return row_format(element);
  if (args.strategy == "group" && has_groups(args)) {
    const ElementType scale = args.exponents ? ElementType::kE8m0 : ElementType::kF32;
    return group_format(element, static_cast<int>(args.group_size), scale);
  }
  return json_fail("activation strategy is not supported", path, "strategy", json_find(*activations, "strategy"),
                   "token, tensor, or group with a group_size");
}

Result<const Format*> find_format(const std::string& name, const std::string& path) {
  std::string names;
  for (const Format& row : kFormats) {
    if (row.name == (name.empty() ? "naive-quantized" : name)) return &row;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return fail({.what = "compressed-tensors format is not supported",
               .where = path,
               .found = name,
               .expected = "one of " + names});
}

// Whether the weights are of the format's type; and, where they are not packed, of eight bits.
Result<void> check_format(const Format& row, const TensorFormat& weight, const std::string& path) {
  const bool is_float = weight.element == ElementType::kE4m3 || weight.element == ElementType::kE2m1;
  const bool type_fits = row.type.empty() || (row.type == "float") == is_float;
  if (type_fits && (row.bits == 0 || row.bits == element_bits(weight.element))) return {};
  return fail({.what = "format and weight type disagree",
               .where = fmt::format("{}.format", path),
               .found = fmt::format("{} for {}", row.name, weight.describe()),
               .expected = "the format that this type and number of bits are stored in"});
}

Result<ModuleRule> read_group_formats(const Json& group, const std::string& path, const std::string& outer_format) {
  OCTAVO_ASSIGN(const auto own_format, json_text(group, "format", path));
  const std::string format = own_format.value_or(outer_format);
  const Json* weights = json_find(group, "weights");
  if (weights == nullptr)
    return ModuleRule{
        .quantized = false, .weight = {}, .activation = {}, .reason = "checkpoint: group without weights"};
  OCTAVO_ASSIGN(const Format* row, find_format(format, path));
  ModuleRule rule{.quantized = true, .weight = {}, .activation = {}, .reason = "checkpoint", .layout = row->layout};
  OCTAVO_ASSIGN(rule.weight, read_weight_format(*weights, path + ".weights", row->layout));
  OCTAVO_TRY(check_format(*row, rule.weight, path));
  const Json* activations = json_find(group, "input_activations");
  OCTAVO_ASSIGN(rule.activation, read_activation_format(activations, path + ".input_activations"));
  if (activations == nullptr) return rule;
  if (!rule.activation.scaled()) rule.reason = "checkpoint, activations BF16 instead of four bits";
  if (rule.activation.granularity == Granularity::kRow &&
      json_text(*activations, "strategy", path).value_or(std::nullopt).value_or("token") == "tensor")
    rule.reason = "checkpoint, dynamic activations per token instead of per tensor";
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
