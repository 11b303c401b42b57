#include "quantize/quantization_config.h"

#include <fmt/format.h>

#include <map>

#include "base/check.h"

namespace octavo {
namespace {

constexpr std::string_view kFp8 = "fp8", kCompressedTensors = "compressed-tensors";

// Why the dialect cannot express a quantized module; empty when it can.
std::string fp8_refuses(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
  if (w.element != ElementType::kE4m3) return "its weights are E4M3";
  if (w.granularity == Granularity::kRow) return "it has scales per block or per tensor, not per channel";
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

std::string compressed_tensors_refuses(const LinearPlan& plan) {
  const TensorFormat &w = plan.weight, &a = plan.activation;
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

std::string refuses(std::string_view dialect, const LinearPlan& plan) {
  return dialect == kFp8 ? fp8_refuses(plan) : compressed_tensors_refuses(plan);
}

struct Refusal {
  std::string module, formats, reason;
};

std::string formats_text(const LinearPlan& plan) {
  return fmt::format("weights {}, activations {}", plan.weight.describe(), plan.activation.describe());
}

std::optional<Refusal> first_refusal(std::string_view dialect, const PrecisionPlan& plan,
                                     const std::vector<LinearModule>& modules) {
  const LinearPlan* first = nullptr;
  for (const LinearModule& module : modules) {
    const LinearPlan& linear = plan.linear(module.name);
    if (!linear.weight.scaled()) continue;
    std::string reason = refuses(dialect, linear);
    const bool mixed = first != nullptr && (linear.weight != first->weight || linear.activation != first->activation);
    if (reason.empty() && dialect == kFp8 && mixed) reason = "all its modules have the same format";
    if (!reason.empty()) return Refusal{module.name, formats_text(linear), std::move(reason)};
    first = &linear;
  }
  return std::nullopt;
}

Json args(const TensorFormat& format) {
  const bool dynamic = format.scale_time == ScaleTime::kDynamic;
  Json args;
  args["num_bits"] = 8;
  args["type"] = format.element == ElementType::kInt8 ? "int" : "float";
  args["symmetric"] = true;
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
      args["strategy"] = dynamic ? "group" : "block";
      if (dynamic)
        args["group_size"] = format.block_cols;
      else
        args["block_structure"] = Json::array({format.block_rows, format.block_cols});
      break;
    case Granularity::kNone:
      OCTAVO_CHECK(false, "plain formats have no arguments");
  }
  args["dynamic"] = dynamic;
  args["actorder"] = nullptr;
  args["observer"] = dynamic ? Json(nullptr) : Json("minmax");
  args["observer_kwargs"] = Json::object();
  return args;
}

std::string_view format_name(const TensorFormat& weight) {
  return weight.element == ElementType::kInt8 ? "int-quantized" : "float-quantized";
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

}  // namespace

Result<std::string> choose_dialect(std::string_view asked, const PrecisionPlan& plan,
                                   const std::vector<LinearModule>& modules) {
  const std::string both = fmt::format("{} or {}", kFp8, kCompressedTensors);
  if (!asked.empty() && asked != kFp8 && asked != kCompressedTensors)
    return fail({.what = "unknown checkpoint dialect",
                 .where = "--dialect",
                 .found = fmt::format("'{}'", asked),
                 .expected = both});
  for (const std::string_view dialect : {kFp8, kCompressedTensors}) {
    if (!asked.empty() && asked != dialect) continue;
    const auto refusal = first_refusal(dialect, plan, modules);
    if (!refusal) return std::string(dialect);
    // Without a dialect asked for, the last one tried says why.
    if (asked.empty() && dialect == kFp8) continue;
    const std::string_view other = dialect == kFp8 ? kCompressedTensors : kFp8;
    const bool other_can = !first_refusal(other, plan, modules).has_value();
    return fail({.what = fmt::format("the {} dialect cannot express this plan", dialect),
                 .where = refusal->module,
                 .found = refusal->formats,
                 .expected = refusal->reason,
                 .remedy = other_can ? fmt::format("use --dialect {}", other) : "choose another scheme"});
  }
  OCTAVO_CHECK(false, "no dialect tried");
}

Json write_quantization_config(std::string_view dialect, const PrecisionPlan& plan,
                               const std::vector<LinearModule>& modules) {
  return dialect == kFp8 ? fp8_config(plan, modules) : compressed_tensors_config(plan, modules);
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

std::vector<std::string> portability_notes(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  int ragged = 0;
  const LinearModule* first = nullptr;
  for (const LinearModule& module : modules) {
    const TensorFormat& weight = plan.linear(module.name).weight;
    if (weight.granularity != Granularity::kBlock) continue;
    if (module.rows % weight.block_rows == 0 && module.cols % weight.block_cols == 0) continue;
    if (ragged++ == 0) first = &module;
  }
  if (ragged == 0) return {};
  return {
      fmt::format("{} weights are no whole number of blocks ({} is [{}, {}]): vLLM and SGLang refuse such checkpoints",
                  ragged, first->name, first->rows, first->cols)};
}

}  // namespace octavo
