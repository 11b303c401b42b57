// The FMA family: every output is one chain of fused multiply-adds over k, whatever is computed beside it. What
// includes this defines first
//   E4m3Lines   a decoder: I pairs of columns as BF16 from one line of E4M3 codes
//   kFma*       the shape of the blocks, for its number of registers
#pragma once

#include <type_traits>

#include "kernels/cpu/common/linear_finish_simd.h"

namespace octavo {
namespace {

constexpr size_t kFetchBytes = 4096;  // weights are fetched this far ahead

// Lines of weights: 32 rows x 2 columns. even(v) and odd(v): rows 16 v .. 16 v + 15 of the first and the second column.
struct PairLine {
  I pairs[2];
  __attribute__((always_inline)) F even(int v) const { return as_floats(shift_left<16>(pairs[v])); }
  __attribute__((always_inline)) F odd(int v) const {
    return as_floats(pairs[v] & splat_int(static_cast<int>(0xFFFF0000u)));
  }
};

struct E4m3Weights {
  static constexpr int kLineBytes = 64;
  static constexpr bool kAhead = kFmaDecodeAhead;
  E4m3Lines decoder;
  __attribute__((always_inline)) PairLine line(const std::byte* p) const {
    PairLine out;
    decoder.decode(p, out.pairs[0], out.pairs[1]);
    return out;
  }
};

struct Bf16Weights {
  static constexpr int kLineBytes = 128;
  static constexpr bool kAhead = false;
  __attribute__((always_inline)) PairLine line(const std::byte* p) const {
    const auto* words = reinterpret_cast<const float*>(p);
    return {{as_bits(load(words)), as_bits(load(words + 16))}};
  }
};

struct F32Line {
  const float* values;  // [2 columns][32]
  __attribute__((always_inline)) F even(int v) const { return load(values + 16 * v); }
  __attribute__((always_inline)) F odd(int v) const { return load(values + 32 + 16 * v); }
};

struct F32Weights {
  static constexpr int kLineBytes = 256;
  static constexpr bool kAhead = false;
  __attribute__((always_inline)) F32Line line(const std::byte* p) const { return {reinterpret_cast<const float*>(p)}; }
};

template <int kBytes>
OCTAVO_INLINE void prefetch(const std::byte* p) {
#pragma GCC unroll 4
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, _MM_HINT_T0);
}

// acc[p][m][v] = chain over columns [0, cols) of rows 16 v.. of panel p and row m of x; the panel ends after cols_left.
template <class W, int kRows, int kPanels>
OCTAVO_INLINE void chain(const W& weights, const std::byte* lines, size_t panel_bytes, const float* x, int64_t x_stride,
                         int64_t cols, int64_t cols_left, F (&acc)[kPanels][kRows][2]) {
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[p][m][0] = acc[p][m][1] = zero();
  // With kAhead, each line is decoded before the sums of the line in front of it: the core takes instructions oldest
  // first, and decoders that stand behind a row of multiply-adds come too late. The last one is decoded in vain; it is
  // readable.
  using Line = decltype(weights.line(lines));
  Line line[kPanels];
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) line[p] = weights.line(lines + static_cast<size_t>(p) * panel_bytes);
  int64_t k = 0;
  for (; k + 2 <= cols; k += 2, lines += W::kLineBytes) {
    const size_t ahead = fetch_ahead(kFetchBytes, kPanels, panel_bytes, (cols_left - k) / 2 * W::kLineBytes);
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * panel_bytes;
      prefetch<W::kLineBytes>(at + ahead);
      Line next;
      if (W::kAhead)
        next = weights.line(at + W::kLineBytes);
      else
        line[p] = weights.line(at);
      const F even0 = line[p].even(0), even1 = line[p].even(1);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const F value = splat(x[m * x_stride + k]);
        acc[p][m][0] = fma(value, even0, acc[p][m][0]);
        acc[p][m][1] = fma(value, even1, acc[p][m][1]);
      }
      const F odd0 = line[p].odd(0), odd1 = line[p].odd(1);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const F value = splat(x[m * x_stride + k + 1]);
        acc[p][m][0] = fma(value, odd0, acc[p][m][0]);
        acc[p][m][1] = fma(value, odd1, acc[p][m][1]);
      }
      if (W::kAhead) line[p] = next;
    }
  }
  if (k == cols) return;
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) {
    if (!W::kAhead) line[p] = weights.line(lines + static_cast<size_t>(p) * panel_bytes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const F value = splat(x[m * x_stride + k]);
      acc[p][m][0] = fma(value, line[p].even(0), acc[p][m][0]);
      acc[p][m][1] = fma(value, line[p].even(1), acc[p][m][1]);
    }
  }
}

template <class W, int kRows, int kPanels>
void direct_panels(const LinearTask& task, int panel) {
  const W weights;
  const auto* x = reinterpret_cast<const float*>(task.x);
  const int64_t stride = task.x_stride / 4;
  const std::byte* panels = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  alignas(64) float sums[kPanels][kRows][kPanelRows];
  int64_t group = 0;
  for (int64_t k = 0; k < task.cols; k += task.group_cols, ++group) {
    const int64_t cols = k + task.group_cols < task.cols ? task.group_cols : task.cols - k;
    F acc[kPanels][kRows][2];
    chain<W, kRows, kPanels>(weights, panels + static_cast<size_t>(k / 2) * W::kLineBytes, task.panel_bytes, x + k,
                             stride, cols, task.cols - k, acc);
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      const float w_scale = task.grouped ? task.group_scales[(panel + p) * task.group_scale_stride + group] : 1.0f;
#pragma GCC unroll 16
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
struct DirectPanels {
  template <int kPanels>
  static void run(const LinearTask& task, int panel) {
    direct_panels<W, kRows, kPanels>(task, panel);
  }
};

template <class W, int kRows = kFmaDirectRows>
void direct(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return side_by_side<DirectPanels<W, kRows>, fma_panels_at_once(kRows)>(task);
    direct<W, kRows - 1>(task);
  }
}

template <class W>
void decode(const std::byte* lines, int64_t cols, float* tile) {
  const W weights;
  for (int64_t k = 0; k < cols; k += 2, lines += W::kLineBytes, tile += 2 * kPanelRows) {
    prefetch<W::kLineBytes>(lines + kFetchBytes);
    const auto line = weights.line(lines);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      store(tile + 16 * v, line.even(v));
      store(tile + kPanelRows + 16 * v, line.odd(v));
    }
  }
}

// kRows x (16 kFmaTileVectors) outputs: columns [0, cols) of a tile [cols][32] against x [cols][kRows].
template <int kRows>
OCTAVO_INLINE void tile_chain(const float* tile, const float* x, int64_t cols, const std::byte* next, int64_t next_step,
                              F (&acc)[kRows][kFmaTileVectors]) {
  for (int64_t k = 0; k < cols; ++k, tile += kPanelRows, x += kRows, next += next_step) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    F w[kFmaTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kFmaTileVectors; ++v) w[v] = load(tile + 16 * v);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const F value = splat(x[m]);
#pragma GCC unroll 2
      for (int v = 0; v < kFmaTileVectors; ++v) acc[m][v] = fma(value, w[v], acc[m][v]);
    }
  }
}

template <int kRows>
void block_rows(const LinearTask& task) {
  for (int part = 0; part < kPanelRows; part += 16 * kFmaTileVectors) {
    const float* tile = reinterpret_cast<const float*>(task.panels) + part;
    const auto* x = reinterpret_cast<const float*>(task.x);
    float* sums = static_cast<float*>(task.sums) + part;
    const int64_t step = task.grouped ? task.group_cols : task.cols;
    for (int64_t k = 0, group = 0; k < task.cols; k += step, ++group) {
      F acc[kRows][kFmaTileVectors];
      const bool fresh = task.first && k == 0;
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < kFmaTileVectors; ++v)
          acc[m][v] = fresh || task.grouped ? zero() : load(sums + m * kPanelRows + 16 * v);
      tile_chain<kRows>(tile + k * kPanelRows, x + k * kRows, k + step < task.cols ? step : task.cols - k,
                        task.next + k * task.next_step, task.next_step, acc);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < kFmaTileVectors; ++v) {
          float* to = sums + m * kPanelRows + 16 * v;
          F sum = acc[m][v];
          if (task.grouped) {
            const float scale = task.group_scales[group] * task.x_group_scales[m * task.x_group_stride + group];
            sum = fma(sum, splat(scale), fresh ? zero() : load(to));
          }
          store(to, sum);
        }
    }
  }
  if (task.last) finish_panel(task, 0, static_cast<const float*>(task.sums));
}

template <int kRows = kFmaBlockRows>
void block(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return block_rows<kRows>(task);
    block<kRows - 1>(task);
  }
}

constexpr LinearOps kFmaOps{
    .step = StepKind::kFloat,
    .direct_rows = kFmaDirectLimit,
    .chunk_rows = kFmaBlockRows,
    .direct = {direct<F32Weights>, direct<Bf16Weights>, direct<E4m3Weights>, nullptr},
    .block = {block<>, block<>, block<>, nullptr},
    .block_col_bytes = {128, 128, 128, 0},
    .decode = {nullptr, decode<Bf16Weights>, decode<E4m3Weights>, nullptr},
};

}  // namespace
}  // namespace octavo
