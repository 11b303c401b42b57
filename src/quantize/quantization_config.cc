#include "quantize/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "quantize/dialect_writers.h"

namespace octavo {
namespace {

constexpr std::string_view kFp8 = "fp8", kCompressedTensors = "compressed-tensors", kModelOpt = "modelopt",
                           kGptq = "gptq";

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

}  // namespace

bool is_group(const TensorFormat& format) {
  return format.grouped() && format.block_rows == 1;
}

Json wide_modules(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  Json names = Json::array();
  for (const LinearModule& module : modules)
    if (!plan.linear(module.name).weight.scaled()) names.push_back(module.name);
  return names;
}

const LinearPlan& quantized_plan(const PrecisionPlan& plan, const std::vector<LinearModule>& modules) {
  for (const LinearModule& module : modules)
    if (plan.linear(module.name).weight.scaled()) return plan.linear(module.name);
  OCTAVO_CHECK(false, "the plan quantizes nothing");
}

bool is_written(std::string_view dialect) {
  return std::any_of(std::begin(kDialects), std::end(kDialects),
                     [&](const WritableDialect& row) { return row.name == dialect; });
}

std::string written_dialects() {
  std::string names;
  for (const WritableDialect& dialect : kDialects) names += (names.empty() ? "" : ", ") + std::string(dialect.name);
  return names;
}

Result<std::string> choose_dialect(std::string_view asked, const PrecisionPlan& plan,
                                   const std::vector<LinearModule>& modules) {
  std::string able;
  std::optional<Refusal> refusal;
  std::string_view refused;
  for (const WritableDialect& dialect : kDialects) {
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
                 .expected = "one of " + written_dialects()});
  return fail({.what = fmt::format("the {} dialect cannot express this plan", refused),
               .where = refusal->module,
               .found = refusal->formats,
               .expected = refusal->reason,
               .remedy = able.empty() ? "choose another scheme" : fmt::format("use --dialect {}", able)});
}

Json write_quantization_config(std::string_view dialect, const PrecisionPlan& plan,
                               const std::vector<LinearModule>& modules, bool kv) {
  if (dialect == kFp8) return fp8_config(plan, modules);
  if (dialect == kModelOpt) return modelopt_config(plan, modules);
  if (dialect == kGptq) return gptq_config(plan, modules);
  return compressed_tensors_config(plan, modules, kv);
}

bool has_kv_scale_tensors(const PrecisionPlan& plan) {
  const auto plain = [](const TensorFormat& format, const KvOptions& options) {
    return format.element == ElementType::kE4m3 && format.scaled() && format.scale_time == ScaleTime::kStored &&
           options == KvOptions{.tensor_scale = true};
  };
  return std::all_of(plan.kv.begin(), plan.kv.end(),
                     [&](const KvPlan& kv) { return plain(kv.k, kv.k_options) && plain(kv.v, kv.v_options); });
}

std::string kv_scale_name(size_t layer, bool key) {
  return fmt::format("model.layers.{}.self_attn.{}_scale", layer, key ? "k" : "v");
}

ScaleTensor scale_tensor(std::string_view dialect, const LinearModule& module, const TensorFormat& weight) {
  const bool block = weight.granularity == Granularity::kBlock;
  const std::string_view suffix = dialect == kFp8 && block ? "weight_scale_inv" : "weight_scale";
  ScaleTensor scale{fmt::format("{}.{}", module.name, suffix), {}};
  if (weight.granularity == Granularity::kTensor)
    scale.shape = dialect == kCompressedTensors ? Shape{1} : Shape{};
  else
    scale.shape = {weight.scale_rows(module.rows), weight.scale_cols(module.cols)};
  return scale;
}

bool has_input_scale(const LinearPlan& plan) {
  return plan.weight.scaled() && plan.activation.scaled() && plan.activation.scale_time == ScaleTime::kStored;
}

ScaleTensor input_scale_tensor(std::string_view dialect, const LinearModule& module) {
  return {module.name + ".input_scale", dialect == kCompressedTensors ? Shape{1} : Shape{}};
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
