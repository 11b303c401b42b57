// Linear layers by the BF16 dot product: two columns per step, with the instruction's own rounding (subnormals as
// zero).
#include "kernels/cpu/avx512/e4m3_lines.h"
#include "kernels/cpu/common/linear_finish_simd.h"

namespace octavo {
namespace {

constexpr int kDirectRows = 8, kChunkRows = 12;
// Weights are fetched this far ahead, into the L2 cache: more requests can be under way there than into L1.
constexpr size_t kFetchBytes = 8192;

constexpr int panels_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}

struct E4m3Weights {
  static constexpr int kLineBytes = 64;
  E4m3Lines decoder;
  __attribute__((always_inline)) void line(const std::byte* p, I& a, I& b) const { decoder.decode(p, a, b); }
};

struct Bf16Weights {
  static constexpr int kLineBytes = 128;
  __attribute__((always_inline)) void line(const std::byte* p, I& a, I& b) const {
    a = {_mm512_load_si512(p)};
    b = {_mm512_load_si512(p + 64)};
  }
};

template <int kBytes, _mm_hint kHint>
OCTAVO_INLINE void prefetch(const std::byte* p) {
#pragma GCC unroll 2
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, kHint);
}

OCTAVO_INLINE F dot(F sum, I x, I w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x.v), reinterpret_cast<__m512bh>(w.v));
}

// acc[p][m][v] += pairs of columns of panel p against row m of x: x[m * stride + pair], or x[pair * kRows + m] where
// interleaved; then `next` is fetched meanwhile. `lines_left`: lines to the end of a panel.
template <class W, int kRows, int kPanels, bool kInterleaved>
OCTAVO_INLINE void chain(const W& weights, const std::byte* lines, size_t panel_bytes, const int* x, int64_t stride,
                         int64_t pairs, int64_t lines_left, const std::byte* next, int64_t next_step,
                         F (&acc)[kPanels][kRows][2]) {
  for (int64_t i = 0; i < pairs; ++i, lines += W::kLineBytes) {
    if (kInterleaved) {
      prefetch<W::kLineBytes, _MM_HINT_T1>(next);
      next += next_step;
    }
    const size_t ahead = fetch_ahead(kFetchBytes, kPanels, panel_bytes, (lines_left - i) * W::kLineBytes);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * panel_bytes;
      if (!kInterleaved) prefetch<W::kLineBytes, _MM_HINT_T1>(at + ahead);
      I low, high;
      weights.line(at, low, high);
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m) {
        const I value = splat_int(kInterleaved ? x[i * kRows + m] : x[m * stride + i]);
        acc[p][m][0] = dot(acc[p][m][0], value, low);
        acc[p][m][1] = dot(acc[p][m][1], value, high);
      }
    }
  }
}

// One chain over pairs of columns per output and group. sums: [kPanels][kRows][32], chains or totals.
template <class W, int kRows, int kPanels, bool kInterleaved>
OCTAVO_INLINE void panels(const LinearTask& task, int panel, float* sums) {
  const W weights;
  const auto* x = reinterpret_cast<const int*>(task.x);
  const std::byte* lines = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  const int64_t step = task.grouped ? task.group_cols : task.cols;
  for (int64_t k = 0, group = 0; k < task.cols; k += step, ++group) {
    const int64_t cols = k + step < task.cols ? step : task.cols - k;
    const bool fresh = task.first && k == 0;
    F acc[kPanels][kRows][2];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v)
          acc[p][m][v] = fresh || task.grouped ? zero() : load(sums + (p * kRows + m) * kPanelRows + 16 * v);
    chain<W, kRows, kPanels, kInterleaved>(weights, lines + k / 2 * W::kLineBytes, task.panel_bytes,
                                           x + k / 2 * (kInterleaved ? kRows : 1), task.x_stride / 4, (cols + 1) / 2,
                                           (task.cols - k + 1) / 2, task.next + k * task.next_step, 2 * task.next_step,
                                           acc);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const float w_scale = task.grouped ? task.group_scales[(panel + p) * task.group_scale_stride + group] : 1.0f;
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          float* to = sums + (p * kRows + m) * kPanelRows + 16 * v;
          F sum = acc[p][m][v];
          if (task.grouped) {
            const float scale = w_scale * task.x_group_scales[m * task.x_group_stride + group];
            sum = fma(sum, splat(scale), fresh ? zero() : load(to));
          }
          store(to, sum);
        }
    }
  }
}

template <class W, int kRows, int kPanels>
void direct_panels(const LinearTask& task, int panel) {
  alignas(64) float sums[kPanels * kRows * kPanelRows];
  panels<W, kRows, kPanels, false>(task, panel, sums);
  for (int p = 0; p < kPanels; ++p) finish_panel(task, panel + p, sums + p * kRows * kPanelRows);
}

template <class W, int kRows>
struct DirectPanels {
  template <int kPanels>
  static void run(const LinearTask& task, int panel) {
    direct_panels<W, kRows, kPanels>(task, panel);
  }
};

template <class W, int kRows = kDirectRows>
void direct(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return side_by_side<DirectPanels<W, kRows>, panels_at_once(kRows)>(task);
    direct<W, kRows - 1>(task);
  }
}

template <class W, int kRows>
void block_rows(const LinearTask& task) {
  auto* sums = static_cast<float*>(task.sums);
  panels<W, kRows, 1, true>(task, 0, sums);
  if (task.last) finish_panel(task, 0, sums);
}

template <class W, int kRows = kChunkRows>
void block(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return block_rows<W, kRows>(task);
    block<W, kRows - 1>(task);
  }
}

}  // namespace
}  // namespace octavo

namespace octavo::avx512_bf16 {
extern const LinearOps kLinearOps;
const LinearOps kLinearOps{
    .step = StepKind::kBf16,
    .direct_rows = kDirectRows,
    .chunk_rows = kChunkRows,
    .direct = {nullptr, direct<Bf16Weights>, direct<E4m3Weights>, nullptr},
    .block = {nullptr, block<Bf16Weights>, block<E4m3Weights>, nullptr},
    .block_col_bytes = {0, 64, 32, 0},
    .decode = {},
};
}  // namespace octavo::avx512_bf16
