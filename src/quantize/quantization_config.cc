#include "quantize/quantization_config.h"

#include <fmt/format.h>

#include <map>

#include "base/check.h"

namespace octavo {
namespace {

constexpr std::string_view kFp8 = "fp8", kCompressedTensors = "compressed-tensors", kModelOpt = "modelopt",
                           kGptq = "gptq";

// Why the dialect cannot express a quantized module; empty when it can.
std::string fp8_refuses(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  if (w.element != ElementType::kE4m3) return "its weights are E4M3";
  if (w.granularity == Granularity::kRow) return "it has scales per block or per tensor, not per channel";
  if (w.grouped() && w.block_rows == 1) return "its blocks have more than one row";
  if (a.element != ElementType::kE4m3) return "its activations are E4M3";
  if (w.granularity == Granularity::kTensor) {
    if (a.scale_time == ScaleTime::kStored)
      return a.granularity == Granularity::kTensor ? "" : "static activations have one scale";
    if (a.granularity != Granularity::kRow || w.scale != ElementType::kF32 || a.scale != ElementType::kF32)
      return "with one scale per tensor, activations have FP32 scales per token";
    return {};
  }
  if (a.scale_time != ScaleTime::kDynamic) return "static activations go with one weight scale per tensor";
  if (a.granularity != Granularity::kBlock || a.block_rows != 1 || a.block_cols != w.block_cols)
    return "with blocks, activations have a scale per token and block column";
  if (a.scale != w.scale) return "weights and activations have the same kind of scale";
  return {};
}

bool is_group(const TensorFormat& format) {
  return format.grouped() && format.block_rows == 1;
}

// Groups along the inputs: pack-quantized INT4, NVFP4 and MXFP4 with BF16 activations, MXFP8 with its own.
std::string compressed_tensors_refuses_group(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  if (w.element == ElementType::kE4m3) {
    if (w.scale != ElementType::kE8m0 || w.block_cols != 32) return "E4M3 in groups is MXFP8: 32, with E8M0 scales";
    return a == group_format(ElementType::kE4m3, 32, ElementType::kE8m0) ? "" : "MXFP8 activations are MXFP8";
  }
  if (w.element == ElementType::kInt8) return "INT8 has no groups";
  return a == plain_format(ElementType::kBf16) ? "" : "four-bit weights go with BF16 activations";
}

std::string compressed_tensors_refuses(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  if (is_group(w)) return compressed_tensors_refuses_group(plan);
  if (w.element != ElementType::kE4m3 && w.element != ElementType::kInt8) return "its weights are E4M3 or INT8";
  if (w.scale != ElementType::kF32 || a.scale != ElementType::kF32) return "its eight-bit formats have no E8M0 scales";
  if (w.element == ElementType::kInt8 && w.granularity == Granularity::kBlock) return "INT8 has no blocks";
  if (!a.scaled()) return a.element == ElementType::kBf16 ? "" : "activations are BF16 where they are not quantized";
  if (a.element != w.element) return "weights and activations are of the same type";
  if (a.scale_time == ScaleTime::kStored)
    return a.granularity == Granularity::kTensor ? "" : "static activations have one scale";
  if (a.granularity == Granularity::kTensor) return "dynamic activations have a scale per token or per group";
  if (a.granularity == Granularity::kBlock && a.block_rows != 1) return "activation groups lie within a token";
  return {};
}

std::string gptq_refuses(const LinearPlan& plan) {
  if (plan.weight.element != ElementType::kInt4 || !is_group(plan.weight)) return "its weights are INT4 in groups";
  if (plan.weight.scale != ElementType::kF16) return "its scales are FP16";
  return plan.activation == plain_format(ElementType::kBf16) ? "" : "its activations are BF16";
}

// The name of an algorithm; empty where it has none for these formats.
std::string_view modelopt_algorithm(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  const ElementType e4m3 = ElementType::kE4m3;
  const bool bf16 = a == plain_format(ElementType::kBf16);
  if (w.element == ElementType::kE2m1 && w.outer() && bf16) return "W4A16_NVFP4";
  if (w.element != e4m3) return "";
  if (a == group_format(e4m3, 32, ElementType::kE8m0) && is_group(w) && w.scale == ElementType::kE8m0) return "MXFP8";
  if (w.granularity == Granularity::kRow && a == row_format(e4m3)) return "FP8_PER_CHANNEL_PER_TOKEN";
  return "";
}

std::string modelopt_refuses(const LinearPlan& plan) {
  if (!modelopt_algorithm(plan).empty()) return {};
  return "it has NVFP4 with BF16 activations, MXFP8, and E4M3 per channel with activations per token";
}

// In the order of choice; a dialect that is not `chosen` must be asked for. `uniform`: all modules have one format.
struct WritableDialect {
  std::string_view name;
  std::string (*refuses)(const LinearPlan& plan);
  bool chosen, uniform;
};
constexpr WritableDialect kDialects[] = {{kFp8, fp8_refuses, true, true},
                                         {kCompressedTensors, compressed_tensors_refuses, true, false},
                                         {kModelOpt, modelopt_refuses, false, true},
                                         {kGptq, gptq_refuses, false, true}};

struct Refusal {
  std::string module, formats, reason;
};

std::string formats_text(const LinearPlan& plan) {
  return fmt::format("weights {}, activations {}", plan.weight.describe(), plan.activation.describe());
}

std::optional<Refusal> first_refusal(const WritableDialect& dialect, const PrecisionPlan& plan,
                                     const std::vector<LinearModule>& modules) {
  const LinearPlan* first = nullptr;
  for (const LinearModule& module : modules) {
    const LinearPlan& linear = plan.linear(module.name);
    if (!linear.weight.scaled()) continue;
    std::string reason = dialect.refuses(linear);
    const bool mixed = first != nullptr && (linear.weight != first->weight || linear.activation != first->activation);
    if (reason.empty() && dialect.uniform && mixed) reason = "all its modules have the same format";
    if (!reason.empty()) return Refusal{module.name, formats_text(linear), std::move(reason)};
    first = &linear;
  }
  return std::nullopt;
}

bool is_integer(const TensorFormat& format) {
  return format.element == ElementType::kInt8 || format.element == ElementType::kInt4;
}

Json args(const TensorFormat& format) {
  const bool dynamic = format.scale_time == ScaleTime::kDynamic;
  Json args;
  args["num_bits"] = element_bits(format.element);
  args["type"] = is_integer(format) ? "int" : "float";
  args["symmetric"] = !format.zero_points;
  args["group_size"] = nullptr;
  args["block_structure"] = nullptr;
  switch (format.granularity) {
    case Granularity::kTensor:
      args["strategy"] = "tensor";
      break;
    case Granularity::kRow:
      args["strategy"] = dynamic ? "token" : "channel";
      break;
    case Granularity::kBlock:
      args["strategy"] = format.outer() ? "tensor_group" : dynamic || is_group(format) ? "group" : "block";
      if (dynamic || is_group(format))
        args["group_size"] = format.block_cols;
      else
        args["block_structure"] = Json::array({format.block_rows, format.block_cols});
      break;
    case Granularity::kNone:
      OCTAVO_CHECK(false, "plain formats have no arguments");
  }
  if (format.scale == ElementType::kE8m0) args["scale_dtype"] = "torch.uint8";
  if (format.outer()) args["scale_dtype"] = "torch.float8_e4m3fn";
  args["dynamic"] = dynamic;
  args["actorder"] = nullptr;
  args["observer"] = dynamic ? Json(nullptr) : Json("minmax");
  args["observer_kwargs"] = Json::object();
  return args;
}

std::string_view format_name(const TensorFormat& weight) {
  if (weight.element == ElementType::kInt8) return "int-quantized";
  if (weight.element == ElementType::kInt4) return "pack-quantized";
  if (weight.element == ElementType::kE2m1) return weight.outer() ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
  return is_group(weight) ? "mxfp8-quantized" : "float-quantized";
}

// Full names of the modules that stay wide.
Json wide_modules(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  Json names = Json::array();
  for (const LinearModule& module : modules)
    if (!plan.linear(module.name).weight.scaled()) names.push_back(module.name);
  return names;
}

struct Group {
  const LinearPlan* plan;
  std::vector<std::string> modules;
};

// Modules of equal formats, the largest group first: it takes the class "Linear", the others take names.
std::vector<Group> groups_of(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  std::vector<Group> groups;
  for (const LinearModule& module : modules) {
    const LinearPlan& linear = plan.linear(module.name);
    if (!linear.weight.scaled()) continue;
    const auto same = [&](const Group& g) {
      return g.plan->weight == linear.weight && g.plan->activation == linear.activation;
    };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(groups.end(), Group{&linear, {}});
    found->modules.push_back(module.name);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.modules.size() > b.modules.size(); });
  return groups;
}

Json compressed_tensors_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  const std::vector<Group> groups = groups_of(plan, modules);
  Json config;
  config["quant_method"] = kCompressedTensors;
  bool mixed = false;
  for (const Group& group : groups) mixed |= format_name(group.plan->weight) != format_name(groups[0].plan->weight);
  config["format"] = mixed ? "mixed-precision" : format_name(groups[0].plan->weight);
  config["quantization_status"] = "compressed";
  config["global_compression_ratio"] = nullptr;
  config["config_groups"] = Json::object();
  for (size_t i = 0; i < groups.size(); ++i) {
    const LinearPlan& linear = *groups[i].plan;
    Json group;
    group["targets"] = i == 0 ? Json::array({"Linear"}) : Json(groups[i].modules);
    group["format"] = format_name(linear.weight);
    group["weights"] = args(linear.weight);
    group["input_activations"] = linear.activation.scaled() ? args(linear.activation) : Json(nullptr);
    group["output_activations"] = nullptr;
    config["config_groups"][fmt::format("group_{}", i)] = std::move(group);
  }
  config["ignore"] = wide_modules(plan, modules);
  config["kv_cache_scheme"] = nullptr;
  config["sparsity_config"] = Json::object();
  config["transform_config"] = Json::object();
  config["version"] = "0.12.2";
  return config;
}

Json fp8_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  Json config;
  config["quant_method"] = kFp8;
  config["activation_scheme"] = "dynamic";
  for (const LinearModule& module : modules)
    if (has_input_scale(plan.linear(module.name))) config["activation_scheme"] = "static";
  config["fmt"] = "e4m3";
  for (const LinearModule& module : modules) {
    const TensorFormat& weight = plan.linear(module.name).weight;
    if (weight.granularity != Granularity::kBlock) continue;
    config["weight_block_size"] = Json::array({weight.block_rows, weight.block_cols});
    if (weight.scale == ElementType::kE8m0) config["scale_fmt"] = "ue8m0";
    break;
  }
  config["modules_to_not_convert"] = wide_modules(plan, modules);
  return config;
}

// The plan of the quantized modules, where all have the same.
const LinearPlan& quantized_plan(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  for (const LinearModule& module : modules)
    if (plan.linear(module.name).weight.scaled()) return plan.linear(module.name);
  OCTAVO_CHECK(false, "the plan quantizes nothing");
}

Json modelopt_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  const LinearPlan& linear = quantized_plan(plan, modules);
  Json weights = {{"dynamic", false}, {"num_bits", element_bits(linear.weight.element)}, {"type", "float"}};
  if (is_group(linear.weight)) weights["group_size"] = linear.weight.block_cols;
  Json activations = nullptr;
  if (linear.activation.scaled()) {
    activations = {{"dynamic", true}, {"num_bits", 8}, {"type", "float"}};
    if (is_group(linear.activation)) activations["group_size"] = linear.activation.block_cols;
  }
  Json config;
  config["quant_method"] = kModelOpt;
  config["quant_algo"] = modelopt_algorithm(linear);
  config["config_groups"]["group_0"] = {
      {"weights", weights}, {"input_activations", activations}, {"targets", Json::array({"Linear"})}};
  config["ignore"] = wide_modules(plan, modules);
  config["producer"] = {{"name", "octavo"}};
  return config;
}

Json gptq_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  const TensorFormat& weight = quantized_plan(plan, modules).weight;
  Json config;
  config["quant_method"] = kGptq;
  config["bits"] = element_bits(weight.element);
  config["group_size"] = weight.block_cols;
  config["desc_act"] = false;
  config["sym"] = !weight.zero_points;
  // Version 1 stores zero points less one, and cannot say 0.
  config["checkpoint_format"] = weight.zero_points ? "gptq_v2" : "gptq";
  config["lm_head"] = false;
  for (const LinearModule& module : modules) {
    if (plan.linear(module.name).weight.scaled()) {
      if (module.role == Role::kHead) config["lm_head"] = true;
      continue;
    }
    if (module.role == Role::kHead) continue;
    std::string pattern;
    for (const char c : module.name) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
    config["dynamic"]["-:" + pattern + "$"] = Json::object();
  }
  return config;
}

}  // namespace

Result<std::string> choose_dialect(std::string_view asked, const PrecisionPlan& plan,
                                   const std::vector<LinearModule>& modules) {
  std::string names, able;
  std::optional<Refusal> refusal;
  std::string_view refused;
  for (const WritableDialect& dialect : kDialects) {
    names += (names.empty() ? "" : ", ") + std::string(dialect.name);
    auto found = first_refusal(dialect, plan, modules);
    if (!found && (asked == dialect.name || (asked.empty() && dialect.chosen))) return std::string(dialect.name);
    if (!found && able.empty()) able = dialect.name;
    // Without a dialect asked for, the last one tried says why.
    if (!found || !(asked == dialect.name || (asked.empty() && dialect.chosen))) continue;
    refusal = std::move(found);
    refused = dialect.name;
  }
  if (!refusal)
    return fail({.what = "unknown checkpoint dialect",
                 .where = "--dialect",
                 .found = fmt::format("'{}'", asked),
                 .expected = "one of " + names});
  return fail({.what = fmt::format("the {} dialect cannot express this plan", refused),
               .where = refusal->module,
               .found = refusal->formats,
               .expected = refusal->reason,
               .remedy = able.empty() ? "choose another scheme" : fmt::format("use --dialect {}", able)});
}

Json write_quantization_config(std::string_view dialect, const PrecisionPlan& plan,
                               const std::vector<LinearModule>& modules) {
  if (dialect == kFp8) return fp8_config(plan, modules);
  if (dialect == kModelOpt) return modelopt_config(plan, modules);
  if (dialect == kGptq) return gptq_config(plan, modules);
  return compressed_tensors_config(plan, modules);
}

ScaleTensor scale_tensor(std::string_view dialect, const LinearModule& module, const TensorFormat& weight) {
  const bool block = weight.granularity == Granularity::kBlock;
  const std::string_view suffix = dialect == kFp8 && block ? "weight_scale_inv" : "weight_scale";
  ScaleTensor scale{fmt::format("{}.{}", module.name, suffix), {}};
  if (weight.granularity == Granularity::kTensor)
    scale.shape = dialect == kFp8 ? Shape{} : Shape{1};
  else
    scale.shape = {weight.scale_rows(module.rows), weight.scale_cols(module.cols)};
  return scale;
}

bool has_input_scale(const LinearPlan& plan) {
  return plan.weight.scaled() && plan.activation.scaled() && plan.activation.scale_time == ScaleTime::kStored;
}

ScaleTensor input_scale_tensor(std::string_view dialect, const LinearModule& module) {
  return {module.name + ".input_scale", dialect == kFp8 ? Shape{} : Shape{1}};
}

namespace {

// Layers whose q, k, v or gate, up have different formats: most engines run each of these as one product.
std::vector<std::string> parted_notes(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  const LinearModule *first = nullptr, *leader = nullptr;
  int parted = 0;
  for (const LinearModule& module : modules) {
    if (module.role == Role::kQ || module.role == Role::kGate) leader = &module;
    const bool follows = module.role == Role::kK || module.role == Role::kV || module.role == Role::kUp;
    if (!follows || leader == nullptr || leader->layer != module.layer) continue;
    const LinearPlan &a = plan.linear(leader->name), &b = plan.linear(module.name);
    if (a.weight == b.weight && a.activation == b.activation) continue;
    if (parted++ == 0) first = &module;
  }
  if (parted == 0) return {};
  return {
      fmt::format("{} modules have other formats than those they are fused with in vLLM and SGLang (the first: {}): "
                  "these refuse such checkpoints",
                  parted, first->name)};
}

}  // namespace

std::vector<std::string> portability_notes(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  std::vector<std::string> notes = parted_notes(plan, modules);
  int ragged = 0;
  const LinearModule* first = nullptr;
  for (const LinearModule& module : modules) {
    const TensorFormat& weight = plan.linear(module.name).weight;
    if (weight.granularity != Granularity::kBlock) continue;
    if (module.rows % weight.block_rows == 0 && module.cols % weight.block_cols == 0) continue;
    if (ragged++ == 0) first = &module;
  }
  if (ragged > 0)
    notes.push_back(fmt::format(
        "{} weights are no whole number of blocks ({} is [{}, {}]): vLLM and SGLang refuse such checkpoints", ragged,
        first->name, first->rows, first->cols));
  return notes;
}

}  // namespace octavo
