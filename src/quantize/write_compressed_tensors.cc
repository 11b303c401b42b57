// The "compressed-tensors" dialect: groups of modules with their arguments.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "quantize/dialect_writers.h"
#include "quantize/quantization_config.h"

namespace octavo {
namespace {

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

TensorFormat kv_tensor_format() {
  TensorFormat format = tensor_wide_format(ElementType::kE4m3);
  format.scale_time = ScaleTime::kStored;
  return format;
}

}  // namespace

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

Json compressed_tensors_config(const PrecisionPlan& plan, const std::vector<LinearModule>& modules, bool kv) {
  const std::vector<Group> groups = groups_of(plan, modules);
  Json config;
  config["quant_method"] = "compressed-tensors";
  bool mixed = false;
  for (const Group& group : groups) mixed |= format_name(group.plan->weight) != format_name(groups[0].plan->weight);
  config["format"] = groups.empty() ? "dense" : mixed ? "mixed-precision" : format_name(groups[0].plan->weight);
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
  if (kv && has_kv_scale_tensors(plan)) config["kv_cache_scheme"] = stored_kv_cache_scheme();
  config["sparsity_config"] = Json::object();
  config["transform_config"] = Json::object();
  config["version"] = "0.12.2";
  return config;
}

Json stored_kv_cache_scheme() {
  return args(kv_tensor_format());
}

}  // namespace octavo
