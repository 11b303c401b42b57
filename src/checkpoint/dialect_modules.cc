// The quantized matrices of a checkpoint whose architecture may be unknown, found by the names of their tensors.
#include <fmt/format.h>

#include <cstdint>

#include "checkpoint/dialect.h"
#include "checkpoint/dialect_tensors.h"

namespace octavo {
namespace {

// The layout of a packed tensor called MODULE + layout.weight; nullptr where the codes are plain bytes.
const PackedLayout* layout_of(const TensorEntry& entry, const std::string& module, std::string_view dialect,
                              const TensorReader& tensors) {
  const auto has = [&](std::string_view suffix) { return tensors.find(module + std::string(suffix)) != nullptr; };
  if (entry.name.ends_with(".qweight")) return dialect == "awq" ? &kAwqWords : &kGptqWords;
  if (entry.name.ends_with("_blocks")) return &kMxfp4Experts;
  if (entry.name.ends_with(".weight_packed")) return entry.stored_type == "I32" ? &kWordsAlongRows : &kNvfp4Divisor;
  if (entry.stored_type != "U8") return nullptr;
  return has(".weight_scale_2") ? &kNvfp4Factor : &kNibblesAlongOut;
}

// [rows, cols] as a tensor beside the weight says it; empty where there is none.
Shape stated_shape(const std::string& module, const TensorReader& tensors) {
  const TensorEntry* entry = tensors.find(module + ".weight_shape");
  if (entry == nullptr || !entry->plain || entry->shape != Shape{2}) return {};
  return {static_cast<int64_t>(entry->plain->at(0)), static_cast<int64_t>(entry->plain->at(1))};
}

}  // namespace

Result<std::vector<LinearModule>> quantized_modules(const Json& config_json, const TensorReader& tensors) {
  std::vector<LinearModule> modules;
  const Json* config = json_find(config_json, "quantization_config");
  if (config == nullptr || !config->is_object()) return modules;
  OCTAVO_ASSIGN(const auto method, json_text(*config, "quant_method", "quantization_config"));
  OCTAVO_ASSIGN(const auto bits, json_integer(*config, "bits", "quantization_config"));
  for (const TensorEntry& entry : tensors.entries()) {
    std::string module;
    for (const std::string_view suffix : {".weight_packed", ".qweight", "_blocks", ".weight"})
      if (module.empty() && entry.name.ends_with(suffix))
        module = entry.name.substr(0, entry.name.size() - suffix.size());
    if (module.empty() || is_wide(entry)) continue;
    const PackedLayout* layout = layout_of(entry, module, method.value_or(""), tensors);
    Shape shape = layout == nullptr ? entry.shape : stated_shape(module, tensors);
    const bool matrix = entry.shape.size() == 2 || (layout == &kMxfp4Experts && entry.shape.size() == 4);
    if (shape.empty() && matrix) shape = layout->logical_shape(entry.shape, bits.value_or(4) == 8 ? 8 : 4);
    const auto possible = [](int64_t dim) { return dim >= 1 && dim <= INT32_MAX; };
    if (shape.size() != 2 || !possible(shape[0]) || !possible(shape[1]))
      return fail({.what = "a quantized weight is no matrix",
                   .where = tensor_where(entry),
                   .found = shape_text(entry.shape),
                   .expected = "two axes"});
    modules.push_back({std::move(module), Role::kDown, -1, shape[0], shape[1]});
  }
  return modules;
}

}  // namespace octavo
