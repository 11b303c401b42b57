#include "formats/tensor.h"

#include <algorithm>
#include <cmath>

#include "numerics/bits.h"
#include "numerics/e8m0.h"

namespace octavo {

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

int64_t TensorView::size() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

float MatrixView::scale_at(int64_t row, int64_t col) const {
  switch (format.granularity) {
    case Granularity::kNone:
      return 1.0f;
    case Granularity::kTensor:
      return scales[0];
    case Granularity::kRow:
      return scales[row];
    case Granularity::kBlock:
      return scales[row / format.block_rows * format.scale_cols(cols) + col / format.block_cols];
  }
  return 1.0f;
}

float MatrixView::at(int64_t row, int64_t col) const {
  const int64_t row_bytes = format.element_bytes(1, cols);
  return load_element(format.element, codes + row * row_bytes, static_cast<size_t>(col)) * scale_at(row, col);
}

std::vector<float> dequantize(const MatrixView& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r)
    for (int64_t c = 0; c < matrix.cols; ++c) values[static_cast<size_t>(r * matrix.cols + c)] = matrix.at(r, c);
  return values;
}

float scale_from_amax(float amax, const TensorFormat& format) {
  if (!is_finite(amax)) return bits_float(0x7FC00000u);
  if (amax == 0.0f) return 1.0f;
  // A subnormal scale would be slow and imprecise, and its inverse infinite: 2^-126 is small enough for any value.
  const float scale = std::max(amax / element_info(format.element).max, exp2_int(-126));
  return format.scale == ElementType::kE8m0 ? E8m0::decode(E8m0::encode_round_up(scale)) : scale;
}

namespace {

// Rows [r0, r1) x columns [c0, c1) share one scale.
void quantize_group(std::span<const float> values, Matrix& out, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                    float& scale) {
  float amax = 0.0f;
  for (int64_t r = r0; r < r1; ++r)
    for (int64_t c = c0; c < c1; ++c) {
      const float x = values[static_cast<size_t>(r * out.cols + c)];
      amax = is_finite(x) ? std::max(amax, std::fabs(x)) : INFINITY;
      if (!is_finite(x)) break;
    }
  scale = scale_from_amax(amax, out.format);
  if (is_nan(scale)) return;  // codes stay 0
  const int64_t row_bytes = out.format.element_bytes(1, out.cols);
  for (int64_t r = r0; r < r1; ++r)
    for (int64_t c = c0; c < c1; ++c)
      store_element(out.format.element, out.codes.data() + r * row_bytes, static_cast<size_t>(c),
                    values[static_cast<size_t>(r * out.cols + c)] / scale);
}

}  // namespace

Matrix quantize(std::span<const float> values, int64_t rows, int64_t cols, const TensorFormat& format) {
  OCTAVO_CHECK(static_cast<int64_t>(values.size()) == rows * cols, "{} values for {}x{}", values.size(), rows, cols);
  Matrix out{.format = format, .rows = rows, .cols = cols, .codes = {}, .scales = {}};
  out.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows, cols)));
  if (!format.scaled()) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        store_element(format.element, out.codes.data() + r * format.element_bytes(1, cols), static_cast<size_t>(c),
                      values[static_cast<size_t>(r * cols + c)]);
    return out;
  }
  const int64_t grid_rows = format.scale_rows(rows), grid_cols = format.scale_cols(cols);
  const int64_t step_rows = format.granularity == Granularity::kBlock ? format.block_rows
                            : format.granularity == Granularity::kRow ? 1
                                                                      : rows;
  const int64_t step_cols = format.granularity == Granularity::kBlock ? format.block_cols : cols;
  out.scales.resize(static_cast<size_t>(grid_rows * grid_cols), 1.0f);
  for (int64_t i = 0; i < grid_rows; ++i)
    for (int64_t j = 0; j < grid_cols; ++j)
      quantize_group(values, out, i * step_rows, std::min(rows, (i + 1) * step_rows), j * step_cols,
                     std::min(cols, (j + 1) * step_cols), out.scales[static_cast<size_t>(i * grid_cols + j)]);
  return out;
}

}  // namespace octavo
