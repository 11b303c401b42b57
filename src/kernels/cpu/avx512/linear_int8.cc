// INT8 linear layers for AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes: x + 128 against w, and the excess
// of 128 x the sum of w is in the sums from the start (LinearTask::corrections). Sums are exact in INT32, wrap-around
// included.
#include "kernels/cpu/common/linear_finish_simd.h"

namespace octavo {
namespace {

constexpr int kDirectRows = 8, kBlockRows = 12;
constexpr int kLineBytes = 4 * kPanelRows;  // 32 rows x 4 columns
constexpr int kPrefetchBytes = 4096;

constexpr int panels_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}

// acc[p][m][v]: rows 16 v.. of panel p and row m of x, whose steps are four columns: x[m * stride + step] in rows
// (kInterleaved = false) or x[step * kRows + m].
template <int kRows, int kPanels, bool kInterleaved>
OCTAVO_INLINE void accumulate(const std::byte* lines, size_t panel_bytes, const int* x, int64_t stride, int64_t steps,
                              __m512i (&acc)[kPanels][kRows][2]) {
  for (int64_t i = 0; i < steps; ++i, lines += kLineBytes) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * panel_bytes;
      if (!kInterleaved) {
        _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes + 64, _MM_HINT_T0);
      }
      const __m512i low = _mm512_load_si512(at), high = _mm512_load_si512(at + 64);
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m) {
        const __m512i value = _mm512_set1_epi32(kInterleaved ? x[i * kRows + m] : x[m * stride + i]);
        acc[p][m][0] = _mm512_dpbusd_epi32(acc[p][m][0], value, low);
        acc[p][m][1] = _mm512_dpbusd_epi32(acc[p][m][1], value, high);
      }
    }
  }
}

template <int kRows, int kPanels, bool kInterleaved>
void panels(const LinearTask& task, int panel) {
  __m512i acc[kPanels][kRows][2];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        acc[p][m][v] = _mm512_loadu_si512(task.corrections + (panel + p) * kPanelRows + 16 * v);
  accumulate<kRows, kPanels, kInterleaved>(task.panels + static_cast<size_t>(panel) * task.panel_bytes,
                                           task.panel_bytes, reinterpret_cast<const int*>(task.x), task.x_stride / 4,
                                           (task.cols + 3) / 4, acc);
  alignas(64) float sums[kPanels][kRows][kPanelRows];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) store(&sums[p][m][16 * v], _mm512_cvtepi32_ps(acc[p][m][v]));
  for (int p = 0; p < kPanels; ++p) finish_panel(task, panel + p, &sums[p][0][0]);
}

template <int kRows>
void direct_rows(const LinearTask& task) {
  constexpr int kMost = panels_at_once(kRows);
  int panel = 0;
  for (; panel + kMost <= task.num_panels; panel += kMost) panels<kRows, kMost, false>(task, panel);
  if constexpr (kMost > 1)
    for (; panel < task.num_panels; ++panel) panels<kRows, 1, false>(task, panel);
}

template <int kRows = kDirectRows>
void direct(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return direct_rows<kRows>(task);
    direct<kRows - 1>(task);
  }
}

template <int kRows = kBlockRows>
void block(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return panels<kRows, 1, true>(task, 0);
    block<kRows - 1>(task);
  }
}

}  // namespace
}  // namespace octavo

namespace octavo::avx512 {
extern const LinearOps kLinearInt8Ops;
const LinearOps kLinearInt8Ops{
    .step = StepKind::kUint8,
    .direct_rows = kDirectRows,
    .block_rows = kBlockRows,
    .tiled = false,
    .direct = {nullptr, nullptr, nullptr, direct<>},
    .block = {nullptr, nullptr, nullptr, block<>},
    .decode = {},
};
}  // namespace octavo::avx512
