// Quantizes rows of FP32, FP16 or BF16 fast: the same bits as quantize() in formats/tensor.h, which is the definition.
// Written for slabs: a large matrix passes through in pieces of a few rows, from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "formats/tensor.h"

namespace octavo {

// Consecutive rows, packed, unaligned. Element: kF32, kF16 or kBf16. Blocks are counted from the first row given, so a
// slab starts at a multiple of block_rows.
struct RowsView {
  ElementType element = ElementType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0, cols = 0;
};

// What rounding cost: sums of squares over the values.
struct RoundingError {
  double difference = 0, value = 0;

  void operator+=(const RoundingError& other) {
    difference += other.difference;
    value += other.value;
  }
  double relative_rms() const;  // 0 for all zeros
};

// The largest magnitude of each scale group: [format.scale_rows(rows), format.scale_cols(cols)]. Infinity where a value
// is NaN or infinite.
void group_amax(const RowsView& rows, const TensorFormat& format, std::span<float> amax);

// The scales of some rows [format.scale_rows(rows), format.scale_cols(cols)], zero points beside them where the format
// has them, and the outer scale of the whole tensor where it has one (outer_from_amax).
struct ScaleGrid {
  std::span<float> scales, zeros = {};
  OuterScale outer = {};
};

// Codes [format.element_bytes(rows, cols)] of the values under the given scales. A group whose scale is NaN gets codes
// 0. `format` has scales.
RoundingError encode_rows(const RowsView& rows, const TensorFormat& format, const ScaleGrid& grid,
                          std::span<std::byte> codes);

// Both: scales and zero points from each group's values, and the codes.
RoundingError quantize_rows(const RowsView& rows, const TensorFormat& format, const ScaleGrid& grid,
                            std::span<std::byte> codes);

// The same for formats whose only parameters are scales.
RoundingError encode_rows(const RowsView& rows, const TensorFormat& format, std::span<const float> scales,
                          std::span<std::byte> codes);
RoundingError quantize_rows(const RowsView& rows, const TensorFormat& format, std::span<float> scales,
                            std::span<std::byte> codes);

// A matrix to be rounded, with what all its rows share. `shared_amax`: the largest magnitude of all the tensors that
// share the scale of a format per tensor, or an outer scale; unused by others.
Matrix unrounded_matrix(const TensorFormat& format, int64_t rows, int64_t cols, float shared_amax);
// Its rows from `begin` on, a multiple of block_rows.
RoundingError round_into(Matrix& out, int64_t begin, const RowsView& rows);
// Both, for the whole matrix.
Matrix round_matrix(const RowsView& rows, const TensorFormat& format, float shared_amax);

// Row and column of the first NaN or infinity.
struct Position {
  int64_t row, col;
};
std::optional<Position> find_non_finite(const RowsView& rows);

}  // namespace octavo
