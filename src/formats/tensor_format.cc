#include "formats/tensor_format.h"

#include <fmt/format.h>

namespace octavo {
namespace {
int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
}  // namespace

int64_t TensorFormat::scale_rows(int64_t rows) const {
  switch (granularity) {
    case Granularity::kNone:
      return 0;
    case Granularity::kTensor:
      return 1;
    case Granularity::kRow:
      return rows;
    case Granularity::kBlock:
      return ceil_div(rows, block_rows);
  }
  return 0;
}

int64_t TensorFormat::scale_cols(int64_t cols) const {
  switch (granularity) {
    case Granularity::kNone:
      return 0;
    case Granularity::kTensor:
    case Granularity::kRow:
      return 1;
    case Granularity::kBlock:
      return ceil_div(cols, block_cols);
  }
  return 0;
}

int64_t TensorFormat::element_bytes(int64_t rows, int64_t cols) const {
  return rows * ceil_div(cols * element_bits(element), 8);
}

int64_t TensorFormat::scale_bytes(int64_t rows, int64_t cols) const {
  const int64_t grid = scale_rows(rows) * scale_cols(cols);
  const int64_t zeros = zero_points ? ceil_div(grid * element_bits(element), 8) : 0;
  return grid * element_bits(scale) / 8 + zeros + (outer() ? 4 : 0);
}

std::string TensorFormat::describe() const {
  std::string text(element_name(element));
  switch (granularity) {
    case Granularity::kNone:
      return text;
    case Granularity::kTensor:
      text += " per tensor";
      break;
    case Granularity::kRow:
      text += " per row";
      break;
    case Granularity::kBlock:
      text += fmt::format(" per {}x{}", block_rows, block_cols);
      break;
  }
  if (scale != ElementType::kF32) text += fmt::format(", {} scales", element_name(scale));
  if (zero_points) text += ", zero points";
  return text;
}

TensorFormat plain_format(ElementType element) {
  return {.element = element};
}

TensorFormat row_format(ElementType element) {
  return {.element = element, .granularity = Granularity::kRow};
}

TensorFormat tensor_wide_format(ElementType element) {
  return {.element = element, .granularity = Granularity::kTensor};
}

TensorFormat block_format(ElementType element, int rows, int cols, ElementType scale) {
  return {
      .element = element, .granularity = Granularity::kBlock, .block_rows = rows, .block_cols = cols, .scale = scale};
}

TensorFormat group_format(ElementType element, int cols, ElementType scale, bool zero_points) {
  TensorFormat format = block_format(element, 1, cols, scale);
  format.zero_points = zero_points;
  return format;
}

}  // namespace octavo
