#include "formats/tensor.h"

#include <algorithm>
#include <cmath>

#include "numerics/bits.h"
#include "numerics/e8m0.h"
#include "numerics/minifloat.h"

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

int64_t MatrixView::grid_index(int64_t row, int64_t col) const {
  switch (format.granularity) {
    case Granularity::kNone:
    case Granularity::kTensor:
      return 0;
    case Granularity::kRow:
      return row;
    case Granularity::kBlock:
      return row / format.block_rows * format.scale_cols(cols) + col / format.block_cols;
  }
  return 0;
}

float MatrixView::scale_at(int64_t row, int64_t col) const {
  if (!format.scaled()) return 1.0f;
  const float scale = scales[grid_index(row, col)];
  return format.outer() ? outer.over(scale) : scale;
}

float MatrixView::element_at(int64_t row, int64_t col) const {
  const int64_t row_bytes = format.element_bytes(1, cols);
  const float element = load_element(format.element, codes + row * row_bytes, static_cast<size_t>(col));
  return format.zero_points ? element - zeros[grid_index(row, col)] : element;
}

MatrixView MatrixView::slab(int64_t begin, int64_t end) const {
  OCTAVO_CHECK(format.granularity != Granularity::kBlock || begin % format.block_rows == 0, "slab at row {} of {}",
               begin, format.describe());
  MatrixView out = *this;
  out.rows = end - begin;
  out.codes += begin * format.element_bytes(1, cols);
  if (!format.scaled()) return out;
  const int64_t first = grid_index(begin, 0);
  out.scales += first;
  if (format.zero_points) out.zeros += first;
  return out;
}

void dequantize_row(const MatrixView& matrix, int64_t row, float* out) {
  const TensorFormat& format = matrix.format;
  const std::byte* codes = matrix.codes + row * format.element_bytes(1, matrix.cols);
  const int64_t step = format.grouped() ? format.block_cols : std::max<int64_t>(matrix.cols, 1);
  for (int64_t begin = 0; begin < matrix.cols; begin += step) {
    const float scale = matrix.scale_at(row, begin);
    const float zero = format.zero_points ? matrix.zeros[matrix.grid_index(row, begin)] : 0.0f;
    for (int64_t c = begin; c < std::min(matrix.cols, begin + step); ++c)
      out[c] = (load_element(format.element, codes, static_cast<size_t>(c)) - zero) * scale;
  }
}

std::vector<float> dequantize(const MatrixView& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) dequantize_row(matrix, r, values.data() + r * matrix.cols);
  return values;
}

namespace {

// A positive scale as its type stores it: E8M0 rounds up, the others to nearest, but never to zero or infinity.
float round_scale(float scale, ElementType type) {
  switch (type) {
    case ElementType::kE8m0:
      return E8m0::decode(E8m0::encode_round_up(scale));
    case ElementType::kE4m3:
      return E4m3::decode(std::max(E4m3::encode(scale), 1u));
    case ElementType::kF16:
      return F16::decode(std::max(F16::encode(scale), 1u));
    case ElementType::kBf16:
      return Bf16::decode(std::max(Bf16::encode(scale), 0x80u));
    default:
      return scale;
  }
}

}  // namespace

float scale_from_amax(float amax, const TensorFormat& format, OuterScale outer) {
  if (!is_finite(amax)) return bits_float(0x7FC00000u);
  if (amax == 0.0f) return 1.0f;
  // OCP MX for E2M1: the power of two under amax, over that under 6. A ceiling would waste more of the three magnitude
  // bits than the values between 6 and 8 lose by saturating.
  if (format.scale == ElementType::kE8m0 && format.element == ElementType::kE2m1)
    return exp2_int(std::clamp(std::ilogb(amax) - 2, -126, 127));
  // A subnormal scale would be slow and imprecise, and its inverse infinite: 2^-126 is small enough for any value.
  const float scale = std::max(amax / element_info(format.element).max / outer.value(), exp2_int(-126));
  return round_scale(scale, format.scale);
}

OuterScale outer_from_amax(float amax, const TensorFormat& format) {
  if (!is_finite(amax) || amax == 0.0f) return {};
  const float largest = element_info(format.element).max * element_info(format.scale).max;
  return {.factor = E8m0::decode(E8m0::encode_round_up(std::max(amax / largest, exp2_int(-100))))};
}

ScaleAndZero scale_from_range(float low, float high, const TensorFormat& format) {
  if (!is_finite(low) || !is_finite(high)) return {bits_float(0x7FC00000u), 0.0f};
  const int levels = (1 << element_bits(format.element)) - 1, lowest = -(1 << (element_bits(format.element) - 1));
  low = std::min(low, 0.0f);
  high = std::max(high, 0.0f);
  const float range = high / static_cast<float>(levels) - low / static_cast<float>(levels);
  const float scale = range == 0.0f ? 1.0f : round_scale(std::max(range, exp2_int(-126)), format.scale);
  const float zero = static_cast<float>(lowest) - std::nearbyint(low / scale);
  return {scale, std::clamp(zero, static_cast<float>(lowest), static_cast<float>(lowest + levels))};
}

int integer_code(float value, ScaleAndZero group, ElementType element) {
  const float limit = static_cast<float>(1 << (element_bits(element) - 1));
  const float code = std::nearbyint(value / group.scale) + group.zero;
  return static_cast<int>(std::clamp(code, -limit, limit - 1.0f));
}

namespace {

// Rows [r0, r1) x columns [c0, c1) share a scale.
struct Group {
  int64_t r0, r1, c0, c1;
};

struct Range {
  float low = INFINITY, high = -INFINITY;  // infinite where a value is not finite, too

  float amax() const { return std::max(-low, high); }
};

Range range_of(std::span<const float> values, int64_t cols, const Group& group) {
  Range range;
  for (int64_t r = group.r0; r < group.r1; ++r)
    for (int64_t c = group.c0; c < group.c1; ++c) {
      const float x = values[static_cast<size_t>(r * cols + c)];
      if (!is_finite(x)) return {-INFINITY, INFINITY};
      range = {std::min(range.low, x), std::max(range.high, x)};
    }
  return range;
}

void quantize_group(std::span<const float> values, Matrix& out, const Group& group, size_t index) {
  const TensorFormat& format = out.format;
  const Range range = range_of(values, out.cols, group);
  ScaleAndZero grid{};
  if (format.zero_points)
    grid = scale_from_range(range.low, range.high, format);
  else
    grid.scale = scale_from_amax(range.amax(), format, out.outer);
  out.scales[index] = grid.scale;
  if (format.zero_points) out.zeros[index] = grid.zero;
  if (is_nan(grid.scale)) return;  // codes stay 0
  const int64_t row_bytes = format.element_bytes(1, out.cols);
  const float scale = format.outer() ? out.outer.over(grid.scale) : grid.scale;
  for (int64_t r = group.r0; r < group.r1; ++r)
    for (int64_t c = group.c0; c < group.c1; ++c) {
      const float x = values[static_cast<size_t>(r * out.cols + c)];
      std::byte* row = out.codes.data() + r * row_bytes;
      if (format.zero_points)
        store_integer(format.element, row, static_cast<size_t>(c), integer_code(x, grid, format.element));
      else
        store_element(format.element, row, static_cast<size_t>(c), x / scale);
    }
}

}  // namespace

Matrix make_matrix(const TensorFormat& format, int64_t rows, int64_t cols) {
  Matrix out{.format = format, .rows = rows, .cols = cols, .codes = {}, .scales = {}, .zeros = {}};
  out.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows, cols)));
  out.scales.resize(static_cast<size_t>(format.scale_rows(rows) * format.scale_cols(cols)));
  if (format.zero_points) out.zeros.resize(out.scales.size());
  return out;
}

Matrix quantize(std::span<const float> values, int64_t rows, int64_t cols, const TensorFormat& format) {
  OCTAVO_CHECK(static_cast<int64_t>(values.size()) == rows * cols, "{} values for {}x{}", values.size(), rows, cols);
  Matrix out = make_matrix(format, rows, cols);
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
  if (format.outer()) out.outer = outer_from_amax(range_of(values, cols, {0, rows, 0, cols}).amax(), format);
  for (int64_t i = 0; i < grid_rows; ++i)
    for (int64_t j = 0; j < grid_cols; ++j)
      quantize_group(
          values, out,
          {i * step_rows, std::min(rows, (i + 1) * step_rows), j * step_cols, std::min(cols, (j + 1) * step_cols)},
          static_cast<size_t>(i * grid_cols + j));
  return out;
}

}  // namespace octavo
