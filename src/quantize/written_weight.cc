#include "quantize/written_weight.h"

#include <cstring>

#include "base/check.h"
#include "checkpoint/packed_layout.h"
#include "numerics/e8m0.h"

namespace octavo {
namespace {

// nullptr: codes as they are.
const PackedLayout* layout_of(std::string_view dialect, const TensorFormat& weight) {
  if (dialect == "gptq") return &kGptqWords;
  if (weight.element == ElementType::kInt4) return &kWordsAlongRows;
  if (weight.element != ElementType::kE2m1) return nullptr;
  if (weight.scale == ElementType::kE8m0) return &kMxfp4Bytes;
  return dialect == "modelopt" ? &kNvfp4Factor : &kNvfp4Divisor;
}

ElementType stored_scale(const TensorFormat& weight) {
  return weight.scale == ElementType::kE8m0 ? ElementType::kUint8 : weight.scale;
}

bool transposed(const PackedLayout* layout) {
  return layout != nullptr && layout->transposed;
}

// GPTQ has zero points whatever the weights.
bool stores_zeros(const PackedLayout* layout, const TensorFormat& weight) {
  return layout != nullptr && layout->store_zero != nullptr && (weight.zero_points || layout == &kGptqWords);
}

std::vector<std::byte> pack_codes(const PackedLayout* layout, const LinearModule& module, const MatrixView& weight) {
  const int bits = element_bits(weight.format.element);
  const auto size = static_cast<size_t>(weight.format.element_bytes(weight.rows, weight.cols));
  if (layout == nullptr || layout->encode == nullptr) return {weight.codes, weight.codes + size};
  const Shape shape = layout->weight_shape(module.rows, module.cols, bits);
  std::vector<std::byte> packed(static_cast<size_t>(shape[0] * shape[1]) * 4);
  layout->encode(weight.codes, weight.rows, weight.cols, bits, packed.data());
  return packed;
}

std::vector<std::byte> pack_scales(const PackedLayout* layout, const MatrixView& weight) {
  const int64_t rows = weight.format.scale_rows(weight.rows), groups = weight.format.scale_cols(weight.cols);
  const ElementType type = stored_scale(weight.format);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * groups * element_bits(type) / 8));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < groups; ++g) {
      const auto at = static_cast<size_t>(transposed(layout) ? g * rows + r : r * groups + g);
      const float scale = weight.scales[r * groups + g];
      if (type == ElementType::kUint8)
        bytes[at] = std::byte{E8m0::encode_round_up(scale)};
      else
        store_element(type, bytes.data(), at, scale);
    }
  return bytes;
}

// Version 1 of GPTQ stores zero points less one; that of symmetric weights, the middle, is written so.
std::vector<std::byte> pack_zeros(const PackedLayout& layout, const MatrixView& weight) {
  const int bits = element_bits(weight.format.element), middle = 1 << (bits - 1);
  const int64_t rows = weight.format.scale_rows(weight.rows), groups = weight.format.scale_cols(weight.cols);
  const Shape shape = layout.zeros_shape(rows, groups, bits);
  std::vector<std::byte> packed(static_cast<size_t>(shape[0] * shape[1]) * 4);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < groups; ++g) {
      const int zero = weight.format.zero_points ? static_cast<int>(weight.zeros[r * groups + g]) + middle : middle - 1;
      layout.store_zero(packed.data(), r, g, rows, groups, bits, zero);
    }
  return packed;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

bool stores_packed(std::string_view dialect, const TensorFormat& weight) {
  if (weight.granularity == Granularity::kTensor) return false;
  return dialect == "gptq" || dialect == "modelopt" || (weight.grouped() && weight.block_rows == 1);
}

std::vector<TensorToWrite> weight_tensors(std::string_view dialect, const LinearModule& module,
                                          const TensorFormat& weight) {
  const PackedLayout* layout = layout_of(dialect, weight);
  const int bits = element_bits(weight.element);
  const int64_t rows = weight.scale_rows(module.rows), groups = weight.scale_cols(module.cols);
  const auto name = [&](std::string_view suffix) { return module.name + std::string(suffix); };
  std::vector<TensorToWrite> tensors;
  if (layout == nullptr)
    tensors.push_back({name(".weight"), weight.element, {module.rows, module.cols}});
  else
    tensors.push_back({name(layout->weight), layout->word, layout->weight_shape(module.rows, module.cols, bits)});
  Shape grid = transposed(layout) ? Shape{groups, rows} : Shape{rows, groups};
  if (dialect == "modelopt" && weight.granularity == Granularity::kRow) grid = {rows};
  tensors.push_back({name(layout == nullptr ? ".weight_scale" : layout->scale), stored_scale(weight), std::move(grid)});
  if (stores_zeros(layout, weight))
    tensors.push_back({name(layout->zeros), layout->word, layout->zeros_shape(rows, groups, bits)});
  if (weight.outer())
    tensors.push_back({name(layout->outer), ElementType::kF32, layout->outer_divides ? Shape{1} : Shape{}});
  if (layout == &kGptqWords) tensors.push_back({name(layout->groups), ElementType::kInt32, {module.cols}});
  if (layout == &kWordsAlongRows) tensors.push_back({name(".weight_shape"), ElementType::kInt64, {2}});
  return tensors;
}

std::vector<std::vector<std::byte>> pack_weight(std::string_view dialect, const LinearModule& module,
                                                const MatrixView& weight) {
  const TensorFormat& format = weight.format;
  const PackedLayout* layout = layout_of(dialect, format);
  std::vector<std::vector<std::byte>> parts;
  parts.push_back(pack_codes(layout, module, weight));
  parts.push_back(pack_scales(layout, weight));
  if (stores_zeros(layout, format)) parts.push_back(pack_zeros(*layout, weight));
  if (format.outer()) {
    const float value = weight.outer.value();  // a power of two: its inverse is exact
    parts.push_back(bytes_of(std::vector<float>{layout->outer_divides ? 1.0f / value : value}));
  }
  if (layout == &kGptqWords) {
    std::vector<int32_t> group_of(static_cast<size_t>(module.cols));
    for (size_t k = 0; k < group_of.size(); ++k)
      group_of[k] =
          static_cast<int32_t>(k) / (format.grouped() ? format.block_cols : static_cast<int32_t>(module.cols));
    parts.push_back(bytes_of(group_of));
  }
  if (layout == &kWordsAlongRows) parts.push_back(bytes_of(std::vector<int64_t>{module.rows, module.cols}));
  return parts;
}

}  // namespace octavo
