// Which layers the fast linear kernels take.
#include <algorithm>

#include "kernels/cpu/common/linear_panels.h"

namespace octavo {
namespace {

bool is_one_of(ElementType element, std::initializer_list<ElementType> list) {
  return std::find(list.begin(), list.end(), element) != list.end();
}

std::string refuse_elements(const LinearKey& key, std::initializer_list<ElementType> weights,
                            std::initializer_list<ElementType> activations) {
  if (!is_one_of(key.weight.element, weights)) return fmt::format("{} weights", element_name(key.weight.element));
  if (!is_one_of(key.activation.element, activations))
    return fmt::format("{} activations", element_name(key.activation.element));
  return {};
}

std::string refuse_weight_groups(const TensorFormat& weight) {
  if (weight.zero_points && (weight.element != ElementType::kInt4 || !weight.grouped() || weight.block_rows != 1))
    return fmt::format("weights as {}", weight.describe());
  if (weight.outer() && (!weight.grouped() || weight.block_rows != 1))
    return fmt::format("weights as {}", weight.describe());
  if (weight.grouped() && weight.block_rows != 1 && weight.block_rows % kPanelRows != 0)
    return fmt::format("weight blocks of {}x{}: one row, or a multiple of {} wanted", weight.block_rows,
                       weight.block_cols, kPanelRows);
  return {};
}

std::string refuse_groups(const LinearKey& key) {
  const TensorFormat &weight = key.weight, &activation = key.activation;
  std::string reason = refuse_weight_groups(weight);
  if (!reason.empty()) return reason;
  const int unit = line_cols(weight_kind(weight)), w = weight.grouped() ? weight.block_cols : 0,
            x = activation.grouped() ? activation.block_cols : 0;
  if (w % unit != 0)
    return fmt::format("weight blocks of {}x{}: columns must be a multiple of {}", weight.block_rows, w, unit);
  if (x != 0 && (activation.block_rows != 1 || x % unit != 0))
    return fmt::format("activation blocks of {}x{}: one row, a multiple of {} columns wanted", activation.block_rows, x,
                       unit);
  if (w != 0 && x != 0 && std::max(w, x) % std::min(w, x) != 0)
    return fmt::format("weight groups of {} columns and activation groups of {}", w, x);
  return {};
}

constexpr std::initializer_list<ElementType> kFmaWeights = {ElementType::kF32,  ElementType::kBf16, ElementType::kE4m3,
                                                            ElementType::kInt8, ElementType::kInt4, ElementType::kE2m1},
                                             kDotWeights = {ElementType::kBf16, ElementType::kE4m3, ElementType::kInt8,
                                                            ElementType::kInt4, ElementType::kE2m1};

}  // namespace

std::string accepts_fma(const LinearKey& key) {
  const std::string reason =
      refuse_elements(key, kFmaWeights, {ElementType::kF32, ElementType::kBf16, ElementType::kE4m3});
  return reason.empty() ? refuse_groups(key) : reason;
}

std::string accepts_bf16_dot(const LinearKey& key) {
  const std::string reason = refuse_elements(key, kDotWeights, {ElementType::kBf16, ElementType::kE4m3});
  return reason.empty() ? refuse_groups(key) : reason;
}

std::string accepts_int8(const LinearKey& key) {
  const std::string reason = refuse_elements(key, {ElementType::kInt8}, {ElementType::kInt8});
  if (!reason.empty()) return reason;
  for (const TensorFormat* format : {&key.weight, &key.activation})
    if (format->zero_points) return "zero points";
  for (const TensorFormat* format : {&key.weight, &key.activation})
    if (format->granularity == Granularity::kBlock) return fmt::format("scales per block ({})", format->describe());
  // 128 x 128 x K stays below 2^31.
  if (key.cols >= 131072) return fmt::format("{} columns: their sum may not fit INT32", key.cols);
  return {};
}

}  // namespace octavo
