// INT8 linear layers for AVX2: bytes widened to 16 bits, pairs of products summed by vpmaddwd. Exact in INT32.
#include "kernels/cpu/common/linear_finish_simd.h"

namespace octavo {
namespace {

constexpr int kBlockRows = 6;
constexpr int kLineBytes = 4 * kPanelRows;  // 32 rows x 4 columns

// Vectors of 4 weight rows x 4 columns that are summed side by side: sixteen registers hold 12 sums.
constexpr int vectors_at_once(int rows) {
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

// acc[m][v]: for weight row 4 v + i of the panel, elements 2 i and 2 i + 1 sum columns 0, 1 and columns 2, 3 of each
// step.
template <int kRows, int kVectors>
OCTAVO_INLINE void accumulate(const std::byte* lines, const std::byte* x, int64_t stride, int64_t steps,
                              __m256i (&acc)[kRows][kVectors]) {
  for (int64_t i = 0; i < steps; ++i, lines += kLineBytes, x += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(lines) + 4096, _MM_HINT_T0);
    if (kVectors > 4) _mm_prefetch(reinterpret_cast<const char*>(lines) + 4096 + 64, _MM_HINT_T0);
    __m256i value[kRows];
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      long long four = 0;
      __builtin_memcpy(&four, x + m * stride, 8);
      value[m] = _mm256_set1_epi64x(four);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m256i w = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(lines + 16 * v)));
#pragma GCC unroll 6
      for (int m = 0; m < kRows; ++m) acc[m][v] = _mm256_add_epi32(acc[m][v], _mm256_madd_epi16(w, value[m]));
    }
  }
}

// Two vectors of acc (eight weight rows) as eight sums in order.
OCTAVO_INLINE __m256 fold(__m256i a, __m256i b) {
  const __m256i sums = _mm256_hadd_epi32(a, b);  // rows 0, 1, 4, 5, 2, 3, 6, 7
  return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(sums, 0xD8));
}

template <int kRows>
void panel_rows(const LinearTask& task, int panel) {
  constexpr int kVectors = vectors_at_once(kRows);
  alignas(64) float sums[kRows][kPanelRows];
  const std::byte* lines = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  for (int v0 = 0; v0 < 8; v0 += kVectors) {
    __m256i acc[kRows][kVectors];
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[m][v] = _mm256_setzero_si256();
    accumulate<kRows, kVectors>(lines + 16 * v0, task.x, task.x_stride, (task.cols + 3) / 4, acc);
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v += 2) _mm256_store_ps(&sums[m][4 * (v0 + v)], fold(acc[m][v], acc[m][v + 1]));
  }
  finish_panel(task, panel, &sums[0][0]);
}

template <int kRows = kBlockRows>
void direct(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows != kRows) return direct<kRows - 1>(task);
    for (int panel = 0; panel < task.num_panels; ++panel) panel_rows<kRows>(task, panel);
  }
}

}  // namespace
}  // namespace octavo

namespace octavo::avx2 {
extern const LinearOps kLinearInt8Ops;
const LinearOps kLinearInt8Ops{
    .step = StepKind::kInt16,
    .direct_rows = kBlockRows,
    .chunk_rows = kBlockRows,
    .direct = {nullptr, nullptr, nullptr, direct<>},
    .block = {},
    .block_col_bytes = {},
    .decode = {},
};
}  // namespace octavo::avx2
