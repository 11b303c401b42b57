#include "quantize/scale_search.h"

#include <algorithm>
#include <cmath>

#include "formats/quantize_rows.h"

namespace octavo {
namespace {

// The magnitudes of E2M1 lie halfway apart at these values; ties go to the even code.
float round_e2m1(float value) {
  const float magnitude = std::fabs(value);
  const float rounded = magnitude <= 0.25f   ? 0.0f
                        : magnitude < 0.75f  ? 0.5f
                        : magnitude <= 1.25f ? 1.0f
                        : magnitude < 1.75f  ? 1.5f
                        : magnitude <= 2.5f  ? 2.0f
                        : magnitude < 3.5f   ? 3.0f
                        : magnitude <= 5.0f  ? 4.0f
                                             : 6.0f;
  return std::copysign(rounded, value);
}

// Sum of importance x (rounded - value)^2; given up at `limit`.
template <class Round>
double weighted_error(std::span<const float> values, std::span<const float> importance, double limit, Round round) {
  double sum = 0;
  for (size_t i = 0; i < values.size() && sum < limit; ++i) {
    const double difference = round(values[i]) - values[i];
    sum += importance[i] * difference * difference;
  }
  return sum;
}

}  // namespace

bool searches_scales(const TensorFormat& format) {
  return format.grouped() && format.block_rows == 1 && element_bits(format.element) == 4;
}

ScaleAndZero search_scale(std::span<const float> values, std::span<const float> importance, const TensorFormat& format,
                          OuterScale outer) {
  float low = 0, high = 0;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  ScaleAndZero best{1, 0};
  double best_error = INFINITY;
  for (int step = 0; step <= kScaleSteps; ++step) {
    const float share = 1.0f - (1.0f - kSmallestRange) * static_cast<float>(step) / kScaleSteps;
    ScaleAndZero group{0, 0};
    if (format.zero_points)
      group = scale_from_range(low * share, high * share, format);
    else
      group.scale = scale_from_amax(std::max(-low, high) * share, format, outer);
    if (step > 0 && group.scale == best.scale && group.zero == best.zero) continue;
    const float scale = format.outer() ? outer.over(group.scale) : group.scale, inverse = 1.0f / scale;
    const float least = format.zero_points ? -8.0f : -7.0f;
    const double error =
        format.element == ElementType::kE2m1
            ? weighted_error(values, importance, best_error, [&](float v) { return round_e2m1(v * inverse) * scale; })
            : weighted_error(values, importance, best_error, [&](float v) {
                const float code = std::clamp(std::nearbyint(v * inverse) + group.zero, least, 7.0f);
                return (code - group.zero) * scale;
              });
    if (!(error < best_error)) continue;
    best_error = error;
    best = group;
  }
  return best;
}

Matrix round_matrix_searched(std::span<const float> values, int64_t rows, int64_t cols,
                             std::span<const float> importance, const TensorFormat& format, float shared_amax,
                             ThreadPool& pool) {
  const RowsView view{ElementType::kF32, reinterpret_cast<const std::byte*>(values.data()), rows, cols};
  if (!searches_scales(format)) return round_matrix(view, format, shared_amax);
  Matrix matrix = make_matrix(format, rows, cols);
  if (format.outer()) matrix.outer = outer_from_amax(shared_amax, format);
  pool.parallel_items(rows, [&](int64_t r, int) {
    for (int64_t c = 0; c < cols; c += format.block_cols) {
      const auto count = static_cast<size_t>(std::min<int64_t>(format.block_cols, cols - c));
      const ScaleAndZero group = search_scale(values.subspan(static_cast<size_t>(r * cols + c), count),
                                              importance.subspan(static_cast<size_t>(c), count), format, matrix.outer);
      const auto i = static_cast<size_t>(matrix.view().grid_index(r, c));
      matrix.scales[i] = group.scale;
      if (format.zero_points) matrix.zeros[i] = group.zero;
    }
  });
  encode_rows(view, format, ScaleGrid{.scales = matrix.scales, .zeros = matrix.zeros, .outer = matrix.outer},
              {matrix.codes.data(), matrix.codes.size()});
  return matrix;
}

}  // namespace octavo
