// Which layers the fast linear kernels take.
#include <algorithm>

#include "kernels/cpu/common/linear_panels.h"

namespace octavo {
namespace {

bool is_one_of(ElementType element, std::initializer_list<ElementType> list) {
  return std::find(list.begin(), list.end(), element) != list.end();
}

std::string refuse_elements(const LinearKey& key, std::initializer_list<ElementType> list) {
  if (!is_one_of(key.weight.element, list)) return fmt::format("{} weights", element_name(key.weight.element));
  if (!is_one_of(key.activation.element, list))
    return fmt::format("{} activations", element_name(key.activation.element));
  return {};
}

std::string refuse_groups(const LinearKey& key) {
  const TensorFormat &weight = key.weight, &activation = key.activation;
  if (weight.zero_points || weight.outer()) return fmt::format("weights as {}", weight.describe());
  const bool w = weight.granularity == Granularity::kBlock, x = activation.granularity == Granularity::kBlock;
  if (w && (weight.block_rows % kPanelRows != 0 || weight.block_cols % 2 != 0))
    return fmt::format("weight blocks of {}x{}: rows must be a multiple of {}, columns even", weight.block_rows,
                       weight.block_cols, kPanelRows);
  if (x && (activation.block_rows != 1 || activation.block_cols % 2 != 0))
    return fmt::format("activation blocks of {}x{}: one row, an even number of columns wanted", activation.block_rows,
                       activation.block_cols);
  if (w && x && weight.block_cols != activation.block_cols)
    return fmt::format("weight groups of {} columns and activation groups of {}", weight.block_cols,
                       activation.block_cols);
  return {};
}

}  // namespace

std::string accepts_fma(const LinearKey& key) {
  const std::string reason = refuse_elements(key, {ElementType::kF32, ElementType::kBf16, ElementType::kE4m3});
  return reason.empty() ? refuse_groups(key) : reason;
}

std::string accepts_bf16_dot(const LinearKey& key) {
  const std::string reason = refuse_elements(key, {ElementType::kBf16, ElementType::kE4m3});
  return reason.empty() ? refuse_groups(key) : reason;
}

std::string accepts_int8(const LinearKey& key) {
  const std::string reason = refuse_elements(key, {ElementType::kInt8});
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
