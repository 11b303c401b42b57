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

// A [rows, cols] matrix in any format, as stored: codes row-major, and a row-major scale grid
// [format.scale_rows(rows), format.scale_cols(cols)] widened to FP32 (exact for E8M0, BF16, F16). Views; owns nothing.
struct MatrixView {
  TensorFormat format;
  int64_t rows = 0, cols = 0;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;

  float scale_at(int64_t row, int64_t col) const;
  float at(int64_t row, int64_t col) const;  // element x scale
};

// A MatrixView that owns its memory.
struct Matrix {
  TensorFormat format;
  int64_t rows = 0, cols = 0;
  AlignedBytes codes;
  std::vector<float> scales;

  MatrixView view() const { return {format, rows, cols, codes.data(), scales.data()}; }
};

// Values of a matrix as FP32 [rows, cols].
std::vector<float> dequantize(const MatrixView& matrix);

// The scale of a group from its largest magnitude (docs/semantics.md 3): amax / max(element); rounded up to a power of
// two for E8M0 scales; 1 for an all-zero group; NaN where amax is infinite or NaN. Never zero, negative or subnormal.
float scale_from_amax(float amax, const TensorFormat& format);

// Quantizes FP32 [rows, cols] by rounding: the readable definition, with scales from each group's amax.
// A group that holds a NaN or an infinity gets scale NaN and codes 0.
Matrix quantize(std::span<const float> values, int64_t rows, int64_t cols, const TensorFormat& format);

}  // namespace octavo
