#include "checkpoint/dialect_tensors.h"

#include <fmt/format.h>

#include <cmath>

#include "numerics/bits.h"

namespace octavo {
namespace {

LinearPlan wide(std::string reason) {
  return {plain_format(ElementType::kBf16), plain_format(ElementType::kBf16), std::move(reason)};
}

Result<void> check_weight_shape(const LinearModule& module, const TensorEntry& entry) {
  const Shape expected = {module.rows, module.cols};
  if (entry.shape == expected) return {};
  return fail({.what = "weight has the wrong shape",
               .where = tensor_where(entry),
               .found = shape_text(entry.shape),
               .expected = shape_text(expected)});
}

tl::unexpected<Error> missing_weight(const LinearModule& module, const ModelConfig& config,
                                     const TensorReader& tensors) {
  std::string found = "no such tensor";
  for (const std::string_view other : {"weight_packed", "qweight", "blocks"})
    if (tensors.find(fmt::format("{}.{}", module.name, other)) != nullptr)
      found = fmt::format("{}.{}", module.name, other);
  Error error{.what = "weight is missing",
              .where = module.name,
              .found = std::move(found),
              .expected = fmt::format("{}.weight {}", module.name, shape_text({module.rows, module.cols}))};
  if (module.role == Role::kHead && !config.tied_embeddings)
    error.remedy = "set tie_word_embeddings to true in config.json if the head is the embedding table";
  return fail(std::move(error));
}

std::string grid_text(const TensorFormat& format, const LinearModule& module) {
  const std::string shape = shape_text({module.rows, module.cols});
  switch (format.granularity) {
    case Granularity::kTensor:
      return fmt::format("one value for the whole of {}", shape);
    case Granularity::kRow:
      return fmt::format("{}, one per row of {}", shape_text({module.rows, 1}), shape);
    default:
      break;
  }
  return fmt::format("{}, one per {}x{} block of {}",
                     shape_text({format.scale_rows(module.rows), format.scale_cols(module.cols)}), format.block_rows,
                     format.block_cols, shape);
}

// Whether a stored grid of this shape is the format's grid.
bool grid_fits(const Shape& shape, const TensorFormat& format, const LinearModule& module) {
  const bool one = shape.size() <= 2 && std::all_of(shape.begin(), shape.end(), [](int64_t dim) { return dim == 1; });
  if (format.granularity == Granularity::kTensor) return one;
  // ModelOpt's blocks: [rows, 1, columns, 1].
  if (format.grouped() && shape.size() == 4 && shape[1] == 1 && shape[3] == 1)
    return grid_fits({shape[0], shape[2]}, format, module);
  const int64_t rows = format.scale_rows(module.rows), cols = format.scale_cols(module.cols);
  if (shape == Shape{rows, cols} || (rows == 1 && cols == 1 && one)) return true;
  return format.granularity == Granularity::kRow && shape == Shape{rows};
}

bool is_scale_type(ElementType element) {
  return element == ElementType::kF32 || element == ElementType::kBf16 || element == ElementType::kF16 ||
         element == ElementType::kE8m0 || element == ElementType::kE4m3;
}

// The weight's format, its scale grid checked against the tensor.
Result<TensorFormat> resolve_weight(const LinearModule& module, const ModuleRule& rule, const TensorEntry& weight,
                                    std::string_view dialect, const TensorReader& tensors) {
  OCTAVO_ASSIGN(const TensorEntry* scale, find_scale(module, dialect, tensors));
  if (scale == nullptr)
    return fail(
        {.what = fmt::format("{} weight without a scale", element_name(rule.weight.element)),
         .where = tensor_where(weight),
         .found = "no scale tensor",
         .expected = fmt::format("{}.{}: {}", module.name, scale_names(dialect)[0], grid_text(rule.weight, module))});
  TensorFormat format = rule.weight;
  if (rule.shape_decides && !grid_fits(scale->shape, format, module)) {
    TensorFormat per_row = format;
    per_row.granularity = Granularity::kRow;
    if (grid_fits(scale->shape, per_row, module)) format = per_row;
  }
  if (!grid_fits(scale->shape, format, module))
    return fail({.what = "scale grid has the wrong shape",
                 .where = tensor_where(*scale),
                 .found = shape_text(scale->shape),
                 .expected = grid_text(rule.weight, module)});
  const bool exponents =
      scale->plain && scale->plain->element == ElementType::kUint8 && format.scale == ElementType::kE8m0;
  if (!scale->plain || !(is_scale_type(scale->plain->element) || exponents))
    return fail({.what = "scale has an unsupported type",
                 .where = tensor_where(*scale),
                 .found = scale->stored_type,
                 .expected = "F32, BF16, F16 or F8_E8M0"});
  if (scale->plain->element == ElementType::kE8m0) format.scale = ElementType::kE8m0;
  return format;
}

tl::unexpected<Error> type_mismatch(const TensorEntry& entry, std::string expected, std::string remedy = {}) {
  return fail({.what = "quantization_config and the weight's type disagree",
               .where = tensor_where(entry),
               .found = entry.stored_type,
               .expected = std::move(expected),
               .remedy = std::move(remedy)});
}

}  // namespace

std::string tensor_where(const TensorEntry& entry) {
  const std::string file = entry.file.filename().string();
  return file.empty() ? fmt::format("tensor {}", entry.name) : fmt::format("{}: tensor {}", file, entry.name);
}

bool is_wide(const TensorEntry& entry) {
  // Blocks of a GGUF (Q4_1 and the like) are not plain; neither are types that nothing here computes with.
  return entry.stored_type == "F32" || entry.stored_type == "F16" || entry.stored_type == "BF16" ||
         (!entry.plain && (entry.stored_type.starts_with("Q") || entry.stored_type.starts_with("IQ")));
}

const TensorEntry* find_weight(const LinearModule& module, const ModelConfig& config, const TensorReader& tensors) {
  if (module.role == Role::kHead && config.tied_embeddings) return tensors.find("model.embed_tokens.weight");
  return tensors.find(module.name + ".weight");
}

std::span<const std::string_view> scale_names(std::string_view dialect) {
  static constexpr std::string_view kFp8[] = {"weight_scale_inv", "weight_scale"};
  static constexpr std::string_view kCompressedTensors[] = {"weight_scale"};
  if (dialect == "fp8") return kFp8;
  return kCompressedTensors;
}

std::span<const std::string_view> input_scale_names(std::string_view dialect) {
  static constexpr std::string_view kFp8[] = {"input_scale", "activation_scale"};
  static constexpr std::string_view kCompressedTensors[] = {"input_scale"};
  if (dialect == "fp8") return kFp8;
  return kCompressedTensors;
}

Result<const TensorEntry*> find_one_of(const LinearModule& module, std::span<const std::string_view> names,
                                       const TensorReader& tensors) {
  const TensorEntry* found = nullptr;
  for (const std::string_view name : names) {
    const TensorEntry* entry = tensors.find(fmt::format("{}.{}", module.name, name));
    if (entry == nullptr) continue;
    if (found != nullptr)
      return fail({.what = "two scales for one weight",
                   .where = tensor_where(*entry),
                   .found = fmt::format("{} and {}", found->name, entry->name),
                   .expected = "one of them"});
    found = entry;
  }
  return found;
}

Result<const TensorEntry*> find_scale(const LinearModule& module, std::string_view dialect,
                                      const TensorReader& tensors) {
  return find_one_of(module, scale_names(dialect), tensors);
}

Result<LinearPlan> resolve_linear(const LinearModule& module, const ModuleRule& rule, std::string_view dialect,
                                  const ModelConfig& config, const TensorReader& tensors,
                                  std::vector<std::string>& notes) {
  const TensorEntry* weight = find_weight(module, config, tensors);
  if (weight == nullptr) return missing_weight(module, config, tensors);
  OCTAVO_TRY(check_weight_shape(module, *weight));
  const bool tied = module.role == Role::kHead && config.tied_embeddings;
  if (const auto blocks = tensors.code_format(*weight))
    return LinearPlan{*blocks, plain_format(ElementType::kBf16), tied ? "tied to the embedding" : rule.reason};
  if (is_wide(*weight)) {
    if (tied) return wide("tied to the embedding");
    if (module.role == Role::kRouter) return router_plan(fmt::format("checkpoint: stored as {}", weight->stored_type));
    if (!rule.quantized) return wide(rule.reason);
    // Engines never take the head for a "Linear"; any other module kept wide without a word is worth one.
    if (module.role != Role::kHead)
      notes.push_back(fmt::format("{} is stored as {} although quantization_config does not exclude it", weight->name,
                                  weight->stored_type));
    return wide(fmt::format("checkpoint: stored as {}", weight->stored_type));
  }
  if (tied) return type_mismatch(*weight, "F32, F16 or BF16: the head of this model is its embedding table");
  if (dialect == "none")
    return type_mismatch(*weight, "F32, F16 or BF16, as config.json has no quantization_config",
                         "use the config.json that came with these weights");
  if (!rule.quantized) return type_mismatch(*weight, fmt::format("F32, F16 or BF16 ({})", rule.reason));
  if (!weight->plain || weight->plain->element != rule.weight.element)
    return type_mismatch(*weight, rule.layout != nullptr ? fmt::format("{}{}", module.name, rule.layout->weight)
                                                         : std::string(element_info(rule.weight.element).safetensors));
  LinearPlan plan{{}, rule.activation, rule.reason};
  OCTAVO_ASSIGN(plan.weight, resolve_weight(module, rule, *weight, dialect, tensors));
  OCTAVO_ASSIGN(const TensorEntry* input_scale, find_one_of(module, input_scale_names(dialect), tensors));
  const bool is_static = rule.activation.scale_time == ScaleTime::kStored;
  if (is_static && input_scale == nullptr)
    return fail({.what = "static activations without a scale",
                 .where = module.name,
                 .found = "no such tensor",
                 .expected = fmt::format("{}.input_scale, one value", module.name)});
  return plan;
}

Result<std::vector<float>> read_scales(const TensorEntry& entry, int64_t limit, std::optional<ElementType> as) {
  const ElementType type = entry.plain ? as.value_or(entry.plain->element) : ElementType::kBool;
  if (!is_scale_type(type) || element_bits(type) != element_bits(entry.plain->element))
    return fail({.what = "scale has an unsupported type",
                 .where = tensor_where(entry),
                 .found = entry.stored_type,
                 .expected = "F32, BF16, F16 or F8_E8M0"});
  const int64_t count = entry.plain->size();
  if (count < 1 || count > limit)
    return fail({.what = "scale has the wrong shape",
                 .where = tensor_where(entry),
                 .found = shape_text(entry.shape),
                 .expected = limit == 1 ? "one value" : fmt::format("1 to {} values", limit)});
  std::vector<float> scales(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float scale = load_element(type, entry.plain->data.data(), static_cast<size_t>(i));
    if (!is_finite(scale) || scale < 0.0f)
      return fail({.what = "scale is not a finite, non-negative number",
                   .where = tensor_where(entry),
                   .found = fmt::format("{} at index {}", scale, i),
                   .expected = "finite scales > 0"});
    scales[static_cast<size_t>(i)] = scale;
  }
  return scales;
}

}  // namespace octavo
