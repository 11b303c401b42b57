// Linear layers by the BF16 dot product: two columns per step, with the instruction's own rounding (subnormals as
// zero).
#include "kernels/cpu/avx512/e4m3_lines.h"
#include "kernels/cpu/common/linear_finish_simd.h"

namespace octavo {
namespace {

constexpr int kDirectRows = 8, kBlockRows = 12;
constexpr int kPrefetchBytes = 4096;

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

OCTAVO_INLINE F dot(F sum, I x, I w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x.v), reinterpret_cast<__m512bh>(w.v));
}

// One chain over pairs of columns per output. x[m * stride + pair] in rows (kInterleaved = false) or x[pair * kRows +
// m].
template <class W, int kRows, int kPanels, bool kInterleaved>
OCTAVO_INLINE void chain(const W& weights, const std::byte* lines, size_t panel_bytes, const int* x, int64_t stride,
                         int64_t pairs, F (&acc)[kPanels][kRows][2]) {
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) acc[p][m][0] = acc[p][m][1] = zero();
  for (int64_t i = 0; i < pairs; ++i, lines += W::kLineBytes) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * panel_bytes;
      if (!kInterleaved) {
        _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes, _MM_HINT_T0);
        if (W::kLineBytes > 64) _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes + 64, _MM_HINT_T0);
      }
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

template <class W, int kRows, int kPanels, bool kInterleaved>
void panels(const LinearTask& task, int panel) {
  const W weights;
  const auto* x = reinterpret_cast<const int*>(task.x);
  const std::byte* lines = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  alignas(64) float sums[kPanels][kRows][kPanelRows];
  int64_t group = 0;
  for (int64_t k = 0; k < task.cols; k += task.group_cols, ++group) {
    const int64_t cols = k + task.group_cols < task.cols ? task.group_cols : task.cols - k;
    F acc[kPanels][kRows][2];
    chain<W, kRows, kPanels, kInterleaved>(weights, lines + static_cast<size_t>(k / 2) * W::kLineBytes,
                                           task.panel_bytes, x + k / 2 * (kInterleaved ? kRows : 1), task.x_stride / 4,
                                           (cols + 1) / 2, acc);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const float w_scale = task.grouped ? task.group_scales[(panel + p) * task.group_scale_stride + group] : 1.0f;
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          F sum = acc[p][m][v];
          if (task.grouped) {
            const float scale = w_scale * task.x_group_scales[m * task.x_group_stride + group];
            sum = fma(sum, splat(scale), group == 0 ? zero() : load(&sums[p][m][16 * v]));
          }
          store(&sums[p][m][16 * v], sum);
        }
    }
  }
  for (int p = 0; p < kPanels; ++p) finish_panel(task, panel + p, &sums[p][0][0]);
}

template <class W, int kRows>
void direct_rows(const LinearTask& task) {
  constexpr int kMost = panels_at_once(kRows);
  int panel = 0;
  for (; panel + kMost <= task.num_panels; panel += kMost) panels<W, kRows, kMost, false>(task, panel);
  if constexpr (kMost > 1)
    for (; panel < task.num_panels; ++panel) panels<W, kRows, 1, false>(task, panel);
}

template <class W, int kRows = kDirectRows>
void direct(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return direct_rows<W, kRows>(task);
    direct<W, kRows - 1>(task);
  }
}

template <class W, int kRows = kBlockRows>
void block(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return panels<W, kRows, 1, true>(task, 0);
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
    .block_rows = kBlockRows,
    .tiled = false,
    .direct = {nullptr, direct<Bf16Weights>, direct<E4m3Weights>, nullptr},
    .block = {nullptr, block<Bf16Weights>, block<E4m3Weights>, nullptr},
    .decode = {},
};
}  // namespace octavo::avx512_bf16
