// INT8 linear layers for AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes: x + 128 against w, and the excess
// of 128 x the sum of w is in the sums from the start (LinearTask::corrections). Sums are exact in INT32: it wraps
// around.
#include "kernels/cpu/common/linear_finish_simd.h"

namespace octavo {
namespace {

constexpr int kChunkRows = 12;
constexpr int kStepCols = 4, kLineBytes = kStepCols * kPanelRows;
constexpr size_t kFetchBytes = 8192;  // weights are fetched this far ahead, into the L2 cache

constexpr int panels_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}

// sum += x (unsigned bytes) . w (signed bytes). Assembler text instead of _mm512_dpbusd_epi32, because g++ 12 does not
// see that the intrinsic's sum is updated in place and copies every accumulator to another register or the stack.
OCTAVO_INLINE void dot(__m512i& sum, __m512i x, __m512i w) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
}

template <int kRows, int kPanels>
void direct_panels(const LinearTask& task, int panel) {
  __m512i acc[kPanels][kRows][2];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        acc[p][m][v] = _mm512_loadu_si512(task.corrections + (panel + p) * kPanelRows + 16 * v);
  const std::byte* lines = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  const auto* x = reinterpret_cast<const int*>(task.x);
  const int64_t stride = task.x_stride / 4, steps = (task.cols + kStepCols - 1) / kStepCols;
  for (int64_t i = 0; i < steps; ++i, lines += kLineBytes) {
    const size_t ahead = fetch_ahead(kFetchBytes, kPanels, task.panel_bytes, (steps - i) * kLineBytes);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * task.panel_bytes;
      _mm_prefetch(reinterpret_cast<const char*>(at) + ahead, _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(at) + ahead + 64, _MM_HINT_T1);
      const __m512i low = _mm512_load_si512(at), high = _mm512_load_si512(at + 64);
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m) {
        const __m512i value = _mm512_set1_epi32(x[m * stride + i]);
        dot(acc[p][m][0], value, low);
        dot(acc[p][m][1], value, high);
      }
    }
  }
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
struct DirectPanels {
  template <int kPanels>
  static void run(const LinearTask& task, int panel) {
    direct_panels<kRows, kPanels>(task, panel);
  }
};

template <int kRows = kChunkRows>
void direct(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return side_by_side<DirectPanels<kRows>, panels_at_once(kRows)>(task);
    direct<kRows - 1>(task);
  }
}

template <int kRows>
void block_rows(const LinearTask& task) {
  auto* sums = static_cast<__m512i*>(task.sums);
  __m512i acc[kRows][2];
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      acc[m][v] = task.first ? _mm512_loadu_si512(task.corrections + 16 * v) : _mm512_load_si512(sums + 2 * m + v);
  const std::byte *lines = task.panels, *next = task.next;
  const auto* x = reinterpret_cast<const int*>(task.x);
  const int64_t steps = (task.cols + kStepCols - 1) / kStepCols, next_step = kStepCols * task.next_step;
  for (int64_t i = 0; i < steps; ++i, lines += kLineBytes, x += kRows, next += next_step) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(next) + 64, _MM_HINT_T1);
    const __m512i low = _mm512_load_si512(lines), high = _mm512_load_si512(lines + 64);
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      const __m512i value = _mm512_set1_epi32(x[m]);
      dot(acc[m][0], value, low);
      dot(acc[m][1], value, high);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      if (task.last)
        store(reinterpret_cast<float*>(sums + 2 * m + v), _mm512_cvtepi32_ps(acc[m][v]));
      else
        _mm512_store_si512(sums + 2 * m + v, acc[m][v]);
    }
  if (task.last) finish_panel(task, 0, static_cast<const float*>(task.sums));
}

template <int kRows = kChunkRows>
void block(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return block_rows<kRows>(task);
    block<kRows - 1>(task);
  }
}

}  // namespace
}  // namespace octavo

namespace octavo::avx512 {
extern const LinearOps kLinearInt8Ops;
const LinearOps kLinearInt8Ops{
    .step = StepKind::kUint8,
    .direct_rows = 2 * kChunkRows,
    .chunk_rows = kChunkRows,
    .direct = {nullptr, nullptr, nullptr, direct<>},
    .block = {nullptr, nullptr, nullptr, block<>},
    .block_col_bytes = {0, 0, 0, kPanelRows},
    .decode = {},
};
}  // namespace octavo::avx512
