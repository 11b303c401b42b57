// The FMA family: every output is one chain of fused multiply-adds over k, whatever is computed beside it. What
// includes this defines first
//   E4m3Lines   a decoder: I pairs of columns as BF16 from one line of E4M3 codes
//   kFma*       the shape of the blocks, for its number of registers
#pragma once

#include "kernels/cpu/common/linear_finish_simd.h"
#include "kernels/cpu/common/linear_groups_simd.h"

namespace octavo {
namespace {

constexpr size_t kFetchBytes = 4096;  // weights are fetched this far ahead

// Weights: how a line of 32 rows x kLineCols columns becomes FP32. Line is what is taken from memory, Group what holds
// for all lines of a group; column(): rows 16 v .. 16 v + 15 of column j.
struct NoGroup {};

struct PairLine {
  I pairs[2];
};

// From pairs of columns as BF16.
OCTAVO_INLINE F from_pair(const PairLine& line, int j, int v) {
  return as_floats(j == 0 ? shift_left<16>(line.pairs[v]) : line.pairs[v] & splat_int(static_cast<int>(0xFFFF0000u)));
}

struct E4m3Weights {
  static constexpr int kLineCols = 2, kLineBytes = 64;
  static constexpr bool kAhead = kFmaDecodeAhead;
  using Line = PairLine;
  using Group = NoGroup;
  E4m3Lines decoder;
  __attribute__((always_inline)) explicit E4m3Weights(const LinearTask&) {}
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    Line out;
    decoder.decode(p, out.pairs[0], out.pairs[1]);
    return out;
  }
  __attribute__((always_inline)) F column(const Line& line, const Group&, int j, int v) const {
    return from_pair(line, j, v);
  }
};

struct Bf16Weights {
  static constexpr int kLineCols = 2, kLineBytes = 128;
  static constexpr bool kAhead = false;
  using Line = PairLine;
  using Group = NoGroup;
  __attribute__((always_inline)) explicit Bf16Weights(const LinearTask&) {}
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    const auto* words = reinterpret_cast<const float*>(p);
    return {{as_bits(load(words)), as_bits(load(words + 16))}};
  }
  __attribute__((always_inline)) F column(const Line& line, const Group&, int j, int v) const {
    return from_pair(line, j, v);
  }
};

struct F32Weights {
  static constexpr int kLineCols = 2, kLineBytes = 256;
  static constexpr bool kAhead = false;
  using Line = const float*;
  using Group = NoGroup;
  __attribute__((always_inline)) explicit F32Weights(const LinearTask&) {}
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Line line(const std::byte* p) const { return reinterpret_cast<const float*>(p); }
  __attribute__((always_inline)) F column(const Line& line, const Group&, int j, int v) const {
    return load(line + kPanelRows * j + 16 * v);
  }
};

struct Int8Weights {
  static constexpr int kLineCols = 4, kLineBytes = 128;
  static constexpr bool kAhead = false;
  using Line = PairLine;  // a word for each row, column j in byte j
  using Group = NoGroup;
  __attribute__((always_inline)) explicit Int8Weights(const LinearTask&) {}
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    const auto* words = reinterpret_cast<const float*>(p);
    return {{as_bits(load(words)), as_bits(load(words + 16))}};
  }
  __attribute__((always_inline)) F column(const Line& line, const Group&, int j, int v) const {
    return to_float(shift_right_signed<24>(shift_left(line.pairs[v], 24 - 8 * j)));
  }
};

// Four bits: a word of 32 bits for each row, column j at bit 16 (j % 2) + 4 (j / 2). kOffset: less zero points; the
// table holds index - 16.
template <bool kOffset>
struct NibbleWeights {
  static constexpr int kLineCols = 8, kLineBytes = 128;
  static constexpr bool kAhead = false;
  using Line = PairLine;
  struct Group {
    F offsets[2];
  };
  Lookup table;
  __attribute__((always_inline)) explicit NibbleWeights(const LinearTask& task) : table(task.codes) {}
  __attribute__((always_inline)) Group group(const LinearTask& task, const std::byte* entry) const {
    if (!kOffset) return {{zero(), zero()}};
    return {{to_float(load_bytes(entry + task.offset_at)), to_float(load_bytes(entry + task.offset_at + 16))}};
  }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    const auto* words = reinterpret_cast<const float*>(p);
    return {{as_bits(load(words)), as_bits(load(words + 16))}};
  }
  __attribute__((always_inline)) F column(const Line& line, const Group& group, int j, int v) const {
    const F value = table(shift_right(line.pairs[v], 16 * (j % 2) + 4 * (j / 2)));
    return kOffset ? value + group.offsets[v] : value;
  }
};

template <int kBytes>
OCTAVO_INLINE void prefetch(const std::byte* p) {
#pragma GCC unroll 4
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, _MM_HINT_T0);
}

// acc[m][v] += x[m * x_stride] x rows 16 v.. of one column.
template <int kRows>
OCTAVO_INLINE void add_column(const float* x, int64_t x_stride, F low, F high, F (&acc)[kRows][2]) {
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    const F value = splat(x[m * x_stride]);
    acc[m][0] = fma(value, low, acc[m][0]);
    acc[m][1] = fma(value, high, acc[m][1]);
  }
}

// The last columns [0, cols) of a group, less than a line.
template <class W, int kRows>
OCTAVO_INLINE void add_tail(const W& weights, const typename W::Group& group, const std::byte* lines, const float* x,
                            int64_t x_stride, int64_t cols, F (&acc)[kRows][2]) {
  alignas(64) float columns[W::kLineCols][kPanelRows];
  const typename W::Line line = weights.line(lines);
#pragma GCC unroll 8
  for (int j = 0; j < W::kLineCols; ++j)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store(&columns[j][16 * v], weights.column(line, group, j, v));
  for (int64_t j = 0; j < cols; ++j) add_column(x + j, x_stride, load(columns[j]), load(columns[j] + 16), acc);
}

// acc[p][m][v] = chain over columns [0, cols) of rows 16 v.. of panel p and row m of x. `bytes_left`: to the end of a
// panel.
template <class W, int kRows, int kPanels>
OCTAVO_INLINE void chain(const W& weights, const typename W::Group (&groups)[kPanels], const std::byte* lines,
                         size_t panel_bytes, const float* x, int64_t x_stride, int64_t cols, int64_t bytes_left,
                         F (&acc)[kPanels][kRows][2]) {
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[p][m][0] = acc[p][m][1] = zero();
  // With kAhead, each line is decoded before the sums of the line in front of it: the core takes instructions oldest
  // first, and decoders that stand behind a row of multiply-adds come too late. The last one is decoded in vain; it is
  // readable.
  using Line = typename W::Line;
  Line line[kPanels];
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) line[p] = weights.line(lines + static_cast<size_t>(p) * panel_bytes);
  int64_t k = 0;
  for (; k + W::kLineCols <= cols; k += W::kLineCols, lines += W::kLineBytes) {
    const size_t ahead = fetch_ahead(kFetchBytes, kPanels, panel_bytes, bytes_left - k / W::kLineCols * W::kLineBytes);
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * panel_bytes;
      prefetch<W::kLineBytes>(at + ahead);
      Line next;
      if (W::kAhead)
        next = weights.line(at + W::kLineBytes);
      else
        line[p] = weights.line(at);
#pragma GCC unroll 8
      for (int j = 0; j < W::kLineCols; ++j)
        add_column(x + k + j, x_stride, weights.column(line[p], groups[p], j, 0),
                   weights.column(line[p], groups[p], j, 1), acc[p]);
      if (W::kAhead) line[p] = next;
    }
  }
  if (k == cols) return;
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p)
    add_tail(weights, groups[p], lines + static_cast<size_t>(p) * panel_bytes, x + k, x_stride, cols - k, acc[p]);
}

template <class W, int kRows, int kPanels>
void direct_panels(const LinearTask& task, int panel) {
  const W weights(task);
  const auto* x = reinterpret_cast<const float*>(task.x);
  const int64_t stride = task.x_stride / 4;
  const std::byte* panels = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  alignas(64) float sums[kPanels][kRows][kPanelRows];
  if (task.grouped) clear_totals(&sums[0][0][0], kPanels * kRows * kPanelRows);
  int64_t number = 0;
  for (int64_t k = 0; k < task.cols; k += task.group_cols, ++number) {
    const int64_t cols = k + task.group_cols < task.cols ? task.group_cols : task.cols - k;
    typename W::Group groups[kPanels];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) groups[p] = weights.group(task, group_entry(task, panel + p, number));
    F acc[kPanels][kRows][2];
    chain<W, kRows, kPanels>(weights, groups, panels + static_cast<size_t>(k / W::kLineCols) * W::kLineBytes,
                             task.panel_bytes, x + k, stride, cols, bytes_left(task, k / W::kLineCols * W::kLineBytes),
                             acc);
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      if (task.grouped) {
        add_group(task, panel + p, number, acc[p], 0, &sums[p][0][0]);
        continue;
      }
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) store(&sums[p][m][16 * v], acc[p][m][v]);
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
void decode(const LinearTask& task, void* tile) {
  const W weights(task);
  const std::byte* lines = task.panels;
  auto* to = static_cast<float*>(tile);
  int64_t number = 0;
  for (int64_t k = 0; k < task.cols; k += task.group_cols, ++number) {
    const typename W::Group group = weights.group(task, group_entry(task, 0, number));
    const int64_t end = k + task.group_cols < task.cols ? k + task.group_cols : task.cols;
    for (int64_t i = k; i < end; i += W::kLineCols, lines += W::kLineBytes, to += W::kLineCols * kPanelRows) {
      prefetch<W::kLineBytes>(lines + kFetchBytes);
      const typename W::Line line = weights.line(lines);
#pragma GCC unroll 8
      for (int j = 0; j < W::kLineCols; ++j)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) store(to + j * kPanelRows + 16 * v, weights.column(line, group, j, v));
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
  if (task.grouped && task.first) clear_totals(static_cast<float*>(task.sums), kRows * kPanelRows);
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
      if (task.grouped) {
        add_group(task, 0, group, acc, part / 16, static_cast<float*>(task.sums));
        continue;
      }
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < kFmaTileVectors; ++v) store(sums + m * kPanelRows + 16 * v, acc[m][v]);
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
    .direct = {direct<F32Weights>, direct<Bf16Weights>, direct<E4m3Weights>, direct<Int8Weights>,
               direct<NibbleWeights<false>>, direct<NibbleWeights<true>>},
    .block = {block<>, block<>, block<>, block<>, block<>, block<>},
    .block_col_bytes = {128, 128, 128, 128, 128, 128},
    .decode = {nullptr, decode<Bf16Weights>, decode<E4m3Weights>, decode<Int8Weights>, decode<NibbleWeights<false>>,
               decode<NibbleWeights<true>>},
};

}  // namespace
}  // namespace octavo
