// Tensors: a view of bytes someone else owns, and a tensor that owns its codes and scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "formats/element_type.h"
#include "formats/tensor_format.h"

namespace octavo {

using Shape = std::vector<int64_t>;

std::string shape_text(const Shape& shape);  // "[576, 1536]"; "[]" for a scalar

// Row-major elements as stored. `data` may be unaligned (it often points into a mapped file).
struct TensorView {
  ElementType element = ElementType::kF32;
  Shape shape;
  std::span<const std::byte> data;

  int64_t size() const;                                                          // number of elements
  int64_t rows() const { return shape.size() < 2 ? 1 : size() / shape.back(); }  // all but the last axis
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  float at(int64_t i) const { return load_element(element, data.data(), static_cast<size_t>(i)); }
};

// The FP32 scale over a tensor's E4M3 scales. Some dialects store a factor, some a divisor: the scale of a group is
// grid x factor / divisor, of which one is 1, so that it is rounded once, as the dialect's own library does.
struct OuterScale {
  float factor = 1.0f, divisor = 1.0f;

  float value() const { return factor / divisor; }  // what a kernel multiplies its sums with
  float over(float inner) const { return inner * factor / divisor; }
};

// A [rows, cols] matrix in any format, as stored: codes row-major, and row-major grids
// [format.scale_rows(rows), format.scale_cols(cols)] of scales widened to FP32 (exact for E8M0, E4M3, BF16, F16) and of
// zero points (whole numbers; only where the format has them). Views; owns nothing.
struct MatrixView {
  TensorFormat format;
  int64_t rows = 0, cols = 0;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  const float* zeros = nullptr;
  OuterScale outer = {};  // format.outer() only

  int64_t grid_index(int64_t row, int64_t col) const;
  float scale_at(int64_t row, int64_t col) const;    // of the grid, the outer scale applied
  float element_at(int64_t row, int64_t col) const;  // without scale: the code's value, less the zero point
  float at(int64_t row, int64_t col) const { return element_at(row, col) * scale_at(row, col); }
  // Rows [begin, end); begin is a multiple of the block height.
  MatrixView slab(int64_t begin, int64_t end) const;
};

// A MatrixView that owns its memory.
struct Matrix {
  TensorFormat format;
  int64_t rows = 0, cols = 0;
  AlignedBytes codes;
  std::vector<float> scales, zeros;
  OuterScale outer = {};

  MatrixView view() const { return {format, rows, cols, codes.data(), scales.data(), zeros.data(), outer}; }
};

// A matrix with room for its codes, scales and zero points; codes and grids are zero.
Matrix make_matrix(const TensorFormat& format, int64_t rows, int64_t cols);

// Values of one row as FP32 [cols], and of a whole matrix [rows, cols].
void dequantize_row(const MatrixView& matrix, int64_t row, float* out);
std::vector<float> dequantize(const MatrixView& matrix);

// The scale of a group from its largest magnitude (docs/semantics.md, "Scales"): amax / max(element), rounded to the
// scale's type; 1 for an all-zero group; NaN where amax is infinite or NaN. Never zero or negative. For E4M3 scales the
// one under `outer`.
float scale_from_amax(float amax, const TensorFormat& format, OuterScale outer = {});

// The outer scale of a tensor from its largest magnitude: a power of two, so that factor and divisor say the same and
// products with E4M3 scales are exact. 1 for zeros and where amax is infinite or NaN.
OuterScale outer_from_amax(float amax, const TensorFormat& format);

// Scale and zero point of a group of integers from its smallest and largest value: the range is widened to hold 0.
struct ScaleAndZero {
  float scale, zero;
};
ScaleAndZero scale_from_range(float low, float high, const TensorFormat& format);

// The integer code of a value: round(value / scale) + zero, saturating to the element's two's complement range.
int integer_code(float value, ScaleAndZero group, ElementType element);

// Quantizes FP32 [rows, cols] by rounding: the readable definition, with scales from each group's amax.
// A group that holds a NaN or an infinity gets scale NaN and codes 0.
Matrix quantize(std::span<const float> values, int64_t rows, int64_t cols, const TensorFormat& format);

}  // namespace octavo
