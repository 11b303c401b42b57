// Linear layers by the BF16 dot product: two columns per step, with the instruction's own rounding (subnormals as
// zero).
#include "kernels/cpu/avx512/e4m3_lines.h"
#include "kernels/cpu/common/linear_finish_simd.h"
#include "kernels/cpu/common/linear_groups_simd.h"

namespace octavo {
namespace {

constexpr int kDirectRows = 8, kChunkRows = 12;
// Weights are fetched this far ahead, into the L2 cache: more requests can be under way there than into L1.
constexpr size_t kFetchBytes = 8192;
constexpr int kShortGroup = 32;

constexpr int panels_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}

// Weights: how a line of 32 rows x 2 kPairs columns becomes pairs of BF16. Line is what is taken from memory, Group
// what holds for all lines of a group; pair(): rows 16 v .. 16 v + 15 of columns 2 j and 2 j + 1.
struct NoGroup {};

struct Line {
  I words[2];
};

struct E4m3Weights {
  static constexpr int kPairs = 1, kLineBytes = 64;
  using Group = NoGroup;
  E4m3Lines decoder;
  __attribute__((always_inline)) explicit E4m3Weights(const LinearTask&) {}
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    Line out;
    decoder.decode(p, out.words[0], out.words[1]);
    return out;
  }
  __attribute__((always_inline)) I pair(const Line& line, const Group&, int, int v) const { return line.words[v]; }
};

struct Bf16Weights {
  static constexpr int kPairs = 1, kLineBytes = 128;
  using Group = NoGroup;
  __attribute__((always_inline)) explicit Bf16Weights(const LinearTask&) {}
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    return {{{_mm512_load_si512(p)}, {_mm512_load_si512(p + 64)}}};
  }
  __attribute__((always_inline)) I pair(const Line& line, const Group&, int, int v) const { return line.words[v]; }
};

// The upper 16 bits of the FP32 value of a magnitude, which hold all of it.
struct Int8Tables {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
};
constexpr Int8Tables kInt8Tables = [] {
  Int8Tables out{};
  for (uint32_t i = 0; i < 128; ++i) {
    out.high[i] = static_cast<uint8_t>(float_bits(static_cast<float>(i)) >> 24);
    out.low[i] = static_cast<uint8_t>(float_bits(static_cast<float>(i)) >> 16);
  }
  return out;
}();

// INT8: a word for each row, column j in byte j. Two look-ups by magnitude, then the sign; -128 looks up the high byte
// of 0 and gets its own.
struct Int8Weights {
  static constexpr int kPairs = 2, kLineBytes = 128;
  using Group = NoGroup;
  struct Pairs {
    I pairs[2][2];
  };
  __m512i high0 = _mm512_load_si512(kInt8Tables.high), high1 = _mm512_load_si512(kInt8Tables.high + 64);
  __m512i low0 = _mm512_load_si512(kInt8Tables.low), low1 = _mm512_load_si512(kInt8Tables.low + 64);
  __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80)), high128 = _mm512_set1_epi8(static_cast<char>(0xC3));
  __m512i first, second;  // of low and high bytes: columns 0 and 1 of each word, columns 2 and 3
  __attribute__((always_inline)) explicit Int8Weights(const LinearTask&) {
    const __m512i bytes = _mm512_set_epi32(60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i spread = _mm512_mullo_epi32(bytes, _mm512_set1_epi32(0x01010101));
    first = _mm512_add_epi8(spread, _mm512_set1_epi32(0x41014000));
    second = _mm512_add_epi8(spread, _mm512_set1_epi32(0x43034202));
  }
  __attribute__((always_inline)) Group group(const LinearTask&, const std::byte*) const { return {}; }
  __attribute__((always_inline)) Pairs line(const std::byte* p) const {
    Pairs out;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512i codes = _mm512_load_si512(p + 64 * v), size = _mm512_abs_epi8(codes);
      __m512i high = _mm512_permutex2var_epi8(high0, size, high1);
      const __m512i low = _mm512_permutex2var_epi8(low0, size, low1);
      high = _mm512_ternarylogic_epi32(high, codes, sign, 0xF8);  // high | (codes & sign)
      high = _mm512_mask_mov_epi8(high, _mm512_movepi8_mask(size), high128);
      out.pairs[0][v] = {_mm512_permutex2var_epi8(low, first, high)};
      out.pairs[1][v] = {_mm512_permutex2var_epi8(low, second, high)};
    }
    return out;
  }
  __attribute__((always_inline)) I pair(const Pairs& line, const Group&, int j, int v) const {
    return line.pairs[j][v];
  }
};

// Four bits: a word of 32 bits for each row, whose halves hold the columns of one parity, pair after pair. Shifted to
// the pair, both halves are indices into a table: vpermw heeds their low five bits. Without zero points the table's
// halves are equal, and the fifth bit does not matter.
template <bool kOffset>
struct NibbleWeights {
  static constexpr int kPairs = 4, kLineBytes = 128;
  struct Group {
    I offsets[2];  // in both halves
  };
  __m512i table;
  __attribute__((always_inline)) explicit NibbleWeights(const LinearTask& task) {
    const I low = shift_right<16>(as_bits(load(task.codes))), high = shift_right<16>(as_bits(load(task.codes + 16)));
    table = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low.v)), _mm512_cvtepi32_epi16(high.v), 1);
  }
  __attribute__((always_inline)) Group group(const LinearTask& task, const std::byte* entry) const {
    if (!kOffset) return {{splat_int(0), splat_int(0)}};
    const I low = load_bytes(entry + task.offset_at), high = load_bytes(entry + task.offset_at + 16);
    return {{low | shift_left<16>(low), high | shift_left<16>(high)}};
  }
  __attribute__((always_inline)) Line line(const std::byte* p) const {
    return {{{_mm512_load_si512(p)}, {_mm512_load_si512(p + 64)}}};
  }
  __attribute__((always_inline)) I pair(const Line& line, const Group& group, int j, int v) const {
    I index = shift_right(line.words[v], 4 * j);
    if (kOffset) index = {_mm512_add_epi16((index & splat_int(0x000F000F)).v, group.offsets[v].v)};
    return {_mm512_permutexvar_epi16(index.v, table)};
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

// acc[m][v] += the first `count` pairs of columns of a line against x[m * x_row + j * x_pair].
template <class W, int kRows>
OCTAVO_INLINE void add_line(const W& weights, const typename W::Group& group, const std::byte* at, const int* x,
                            int64_t x_row, int64_t x_pair, int64_t count, F (&acc)[kRows][2]) {
  const auto line = weights.line(at);
#pragma GCC unroll 4
  for (int j = 0; j < W::kPairs; ++j) {
    if (j >= count) return;
    const I low = weights.pair(line, group, j, 0), high = weights.pair(line, group, j, 1);
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      const I value = splat_int(x[m * x_row + j * x_pair]);
      acc[m][0] = dot(acc[m][0], value, low);
      acc[m][1] = dot(acc[m][1], value, high);
    }
  }
}

// acc[p][m][v] += pairs of columns of panel p against row m of x: x[m * stride + pair], or x[pair * kRows + m] where
// interleaved; then `next` is fetched meanwhile. `bytes_left`: to the end of a panel.
template <class W, int kRows, int kPanels, bool kInterleaved>
OCTAVO_INLINE void chain(const W& weights, const typename W::Group (&groups)[kPanels], const std::byte* lines,
                         size_t panel_bytes, const int* x, int64_t stride, int64_t pairs, int64_t bytes_left,
                         const std::byte* next, int64_t next_step, F (&acc)[kPanels][kRows][2]) {
  const int64_t x_row = kInterleaved ? 1 : stride, x_pair = kInterleaved ? kRows : 1;
  int64_t i = 0;
  for (; i + W::kPairs <= pairs; i += W::kPairs, lines += W::kLineBytes) {
    if (kInterleaved) {
      prefetch<W::kLineBytes, _MM_HINT_T1>(next);
      next += next_step;
    }
    const size_t ahead = fetch_ahead(kFetchBytes, kPanels, panel_bytes, bytes_left - i / W::kPairs * W::kLineBytes);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* at = lines + static_cast<size_t>(p) * panel_bytes;
      if (!kInterleaved) prefetch<W::kLineBytes, _MM_HINT_T1>(at + ahead);
      add_line(weights, groups[p], at, x + i * x_pair, x_row, x_pair, W::kPairs, acc[p]);
    }
  }
  if (W::kPairs == 1 || i == pairs) return;
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p)
    add_line(weights, groups[p], lines + static_cast<size_t>(p) * panel_bytes, x + i * x_pair, x_row, x_pair, pairs - i,
             acc[p]);
}

// One chain over pairs of columns per output and group. sums: [kPanels][kRows][32], chains or totals.
template <class W, int kRows, int kPanels, bool kInterleaved>
OCTAVO_INLINE void panels(const LinearTask& task, int panel, float* sums) {
  const W weights(task);
  const auto* x = reinterpret_cast<const int*>(task.x);
  const std::byte* lines = task.panels + static_cast<size_t>(panel) * task.panel_bytes;
  const int64_t step = task.grouped ? task.group_cols : task.cols;
  if (task.grouped && task.first) clear_totals(sums, kPanels * kRows * kPanelRows);
  for (int64_t k = 0, number = 0; k < task.cols; k += step, ++number) {
    const int64_t cols = k + step < task.cols ? step : task.cols - k;
    const bool fresh = task.first && k == 0;
    typename W::Group groups[kPanels];
    F acc[kPanels][kRows][2];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      groups[p] = weights.group(task, group_entry(task, panel + p, number));
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v)
          acc[p][m][v] = fresh || task.grouped ? zero() : load(sums + (p * kRows + m) * kPanelRows + 16 * v);
    }
    chain<W, kRows, kPanels, kInterleaved>(weights, groups, lines + k / (2 * W::kPairs) * W::kLineBytes,
                                           task.panel_bytes, x + k / 2 * (kInterleaved ? kRows : 1), task.x_stride / 4,
                                           (cols + 1) / 2, bytes_left(task, k / (2 * W::kPairs) * W::kLineBytes),
                                           task.next + k * task.next_step, 2 * task.next_step, acc);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      float* to = sums + p * kRows * kPanelRows;
      if (task.grouped) {
        add_group(task, panel + p, number, acc[p], 0, to);
        continue;
      }
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) store(to + m * kPanelRows + 16 * v, acc[p][m][v]);
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

// Rows [m0, m0 + kPart) of a block in short groups, with totals in registers: Zen 4 stores 64 bytes in two cycles, and
// putting totals away after every group would cost a quarter of the time.
template <class W, int kRows, int kPart>
OCTAVO_INLINE void short_groups(const LinearTask& task, int m0) {
  static_assert(W::kPairs == 1);
  const W weights(task);
  float* sums = static_cast<float*>(task.sums) + m0 * kPanelRows;
  const auto* x = reinterpret_cast<const int*>(task.x) + m0;
  const std::byte *lines = task.panels, *next = task.next;
  F totals[kPart][2];
#pragma GCC unroll 6
  for (int m = 0; m < kPart; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) totals[m][v] = task.first ? zero() : load(sums + m * kPanelRows + 16 * v);
  for (int64_t k = 0, number = 0; k < task.cols; k += task.group_cols, ++number) {
    const int64_t end = k + task.group_cols < task.cols ? k + task.group_cols : task.cols;
    F acc[kPart][2];
#pragma GCC unroll 6
    for (int m = 0; m < kPart; ++m) acc[m][0] = acc[m][1] = zero();
    for (int64_t i = k; i < end; i += 2, lines += W::kLineBytes, x += kRows, next += 2 * task.next_step) {
      if (m0 == 0) prefetch<W::kLineBytes, _MM_HINT_T1>(next);
      add_line(weights, {}, lines, x, 1, kRows, 1, acc);
    }
    F w[2] = {splat(1.0f), splat(1.0f)};
    if (const std::byte* entry = group_entry(task, 0, number)) load_scales(task.scale_kind, entry, w);
    const float* x_scales = task.x_group_scales;
    if (x_scales != nullptr) x_scales += m0 * task.x_group_stride + number / task.chains_per_x_scale;
#pragma GCC unroll 6
    for (int m = 0; m < kPart; ++m) {
      const F value = splat(x_scales == nullptr ? 1.0f : x_scales[m * task.x_group_stride]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        totals[m][v] = fma(acc[m][v], x_scales == nullptr ? w[v] : w[v] * value, totals[m][v]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kPart; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store(sums + m * kPanelRows + 16 * v, totals[m][v]);
}

template <class W, int kRows>
void block_rows(const LinearTask& task) {
  auto* sums = static_cast<float*>(task.sums);
  if (task.grouped && task.group_cols <= kShortGroup) {
    constexpr int kHalf = (kRows + 1) / 2;
    short_groups<W, kRows, kHalf>(task, 0);
    if constexpr (kRows > kHalf) short_groups<W, kRows, kRows - kHalf>(task, kHalf);
  } else {
    panels<W, kRows, 1, true>(task, 0, sums);
  }
  if (task.last) finish_panel(task, 0, sums);
}

template <class W, int kRows = kChunkRows>
void block(const LinearTask& task) {
  if constexpr (kRows > 0) {
    if (task.rows == kRows) return block_rows<W, kRows>(task);
    block<W, kRows - 1>(task);
  }
}

// A tile of pairs of columns as BF16, [pair][32 rows]: what Bf16Weights reads.
template <class W>
void decode(const LinearTask& task, void* tile) {
  const W weights(task);
  const std::byte* lines = task.panels;
  auto* to = static_cast<std::byte*>(tile);
  for (int64_t k = 0, number = 0; k < task.cols; k += task.group_cols, ++number) {
    const typename W::Group group = weights.group(task, group_entry(task, 0, number));
    const int64_t end = k + task.group_cols < task.cols ? k + task.group_cols : task.cols;
    for (int64_t i = k; i < end; i += 2 * W::kPairs, lines += W::kLineBytes) {
      prefetch<W::kLineBytes, _MM_HINT_T1>(lines + kFetchBytes);
      const auto line = weights.line(lines);
#pragma GCC unroll 4
      for (int j = 0; j < W::kPairs; ++j, to += 128)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) _mm512_store_si512(to + 64 * v, weights.pair(line, group, j, v).v);
    }
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
    .direct = {nullptr, direct<Bf16Weights>, direct<E4m3Weights>, direct<Int8Weights>, direct<NibbleWeights<false>>,
               direct<NibbleWeights<true>>},
    .block = {nullptr, block<Bf16Weights>, block<E4m3Weights>, block<Bf16Weights>, block<Bf16Weights>,
              block<Bf16Weights>},
    .block_col_bytes = {0, 64, 32, 64, 64, 64},
    .decode = {nullptr, nullptr, nullptr, decode<Int8Weights>, decode<NibbleWeights<false>>,
               decode<NibbleWeights<true>>},
};
}  // namespace octavo::avx512_bf16
