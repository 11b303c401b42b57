#include "kernels/cpu/common/linear_outliers.h"

#include <algorithm>

#include "kernels/cpu/common/linear_task.h"
#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

constexpr int kRowsAtOnce = 3;  // sums of six registers, as many as hide the latency of their chains

OCTAVO_INLINE F load_bf16(const uint16_t* p) {
  return as_floats(shift_left<16>(load_halves(p)));
}

// kRows rows of one panel; weights: [count][32].
template <int kRows>
OCTAVO_INLINE void add_rows(const float* x, int64_t count, const uint16_t* weights, float* y, int64_t stride) {
  F sums[kRows][2];
  for (int m = 0; m < kRows; ++m) {
    sums[m][0] = load(y + m * stride);
    sums[m][1] = load(y + m * stride + 16);
  }
  for (int64_t i = 0; i < count; ++i, weights += kPanelRows) {
    const F low = load_bf16(weights), high = load_bf16(weights + 16);
    for (int m = 0; m < kRows; ++m) {
      const F value = splat(x[m * count + i]);
      sums[m][0] = fma(value, low, sums[m][0]);
      sums[m][1] = fma(value, high, sums[m][1]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    store(y + m * stride, sums[m][0]);
    store(y + m * stride + 16, sums[m][1]);
  }
}

void add_panel(const float* x, int64_t count, const uint16_t* weights, float* y, int64_t stride, int64_t rows,
               int64_t outputs) {
  if (outputs < kPanelRows) {  // y has no room for a whole panel
    for (int64_t m = 0; m < rows; ++m) {
      alignas(64) float whole[kPanelRows] = {};
      std::copy_n(y + m * stride, outputs, whole);
      add_rows<1>(x + m * count, count, weights, whole, kPanelRows);
      std::copy_n(whole, outputs, y + m * stride);
    }
    return;
  }
  int64_t m = 0;
  for (; m + kRowsAtOnce <= rows; m += kRowsAtOnce)
    add_rows<kRowsAtOnce>(x + m * count, count, weights, y + m * stride, stride);
  for (; m < rows; ++m) add_rows<1>(x + m * count, count, weights, y + m * stride, stride);
}

}  // namespace

void add_outliers(const LinearCall& call, int64_t row, int64_t rows, int64_t panel, int64_t panels) {
  const PackedLinear& packed = *call.weight;
  const int64_t count = packed.num_outliers;
  if (count == 0) return;
  const float* x = call.input.outliers + row * count;
  for (int64_t p = panel; p < panel + panels; ++p) {
    const int64_t n = p * kPanelRows;
    add_panel(x, count, packed.outliers.data() + packed.outlier_index(n, 0), call.output + row * call.output_stride + n,
              call.output_stride, rows, std::min<int64_t>(kPanelRows, packed.key.rows - n));
  }
}

}  // namespace octavo
