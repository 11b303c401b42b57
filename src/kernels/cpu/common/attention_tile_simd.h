// Prefill attention: a block of keys is decoded once into FP32 (or BF16 pair) tiles, then meets the rows of a query
// tile a few at a time. Written for any vector width and for both arithmetics (Fma, Dot): A::kTokens elements make one
// step.
//
// kv_lines_*.h says how many accumulators fit the registers: kTileRows rows x kTileCols registers of 16 columns.
#pragma once

#include "kernels/cpu/common/attention_softmax_simd.h"
#include "kernels/cpu/common/kv_lines.h"

namespace octavo {
namespace {

constexpr int kStepRows = kTileRows / 3;  // rows come in thirds of a full tile

template <class A>
OCTAVO_INLINE int query_steps(const AttentionShape& shape) {
  return (shape.head_dim + A::kTokens - 1) / A::kTokens;
}

// sums[r][c] += steps of a[r][s] x b[s][16 c ..]; rows of a are kStride apart, steps of b 32.
template <class A, int kStride, int kRows>
OCTAVO_INLINE void accumulate(const float* a, const float* b, int steps, F (&sums)[kRows][kTileCols]) {
  for (int s = 0; s < steps; ++s) {
    F columns[kTileCols];
#pragma GCC unroll 4
    for (int c = 0; c < kTileCols; ++c) columns[c] = load(b + s * 32 + 16 * c);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F x = splat(a[r * kStride + s]);
#pragma GCC unroll 4
      for (int c = 0; c < kTileCols; ++c) sums[r][c] = A::step(x, columns[c], sums[r][c]);
    }
  }
}

// Sums q x k of kRows rows and the keys of pages [first, last).
template <class A, int kRows>
void tile_scores(const AttentionShape& shape, const float* queries, int64_t chunk_size, int first, int last,
                 const AttentionMemory& memory) {
  const int steps = query_steps<A>(shape);
  for (int page = first; page < last; ++page)
    for (int column = 0; column < 32; column += 16 * kTileCols) {
      F sums[kRows][kTileCols] = {};
      const float* keys = memory.k_tile + static_cast<int64_t>(page) * steps * 32 + column;
      for (int s = 0, chunk = 0; s < steps; s += kQueryChunk, ++chunk)
        accumulate<A, kQueryStride>(queries + chunk * chunk_size, keys + static_cast<int64_t>(s) * 32,
                                    smaller(kQueryChunk, steps - s), sums);
      for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kTileCols; ++c)
          store(memory.scores + r * kAttentionBlock + page * kPageTokens + column + 16 * c, sums[r][c]);
    }
}

// Which keys each of a few rows sees in a block, and those that all of them see.
struct TileRanges {
  Range rows[kTileRows];
  Range common;  // whole steps; {0, 0} where there is none
  int begin, end;
};

// Continues one row's sums of sixteen columns over the keys of a range, whatever the alignment of its ends.
template <class A>
OCTAVO_INLINE F row_values(const float* weights, const float* values, Range range, F sum) {
  int t = range.begin;
  if constexpr (A::kTokens == 2)
    if (t % 2 != 0 && t < range.end) {
      sum = A::step(splat(weights[t / 2]), A::template half<1>(load(values + t / 2 * 32)), sum);
      ++t;
    }
  for (; t + A::kTokens <= range.end; t += A::kTokens)
    sum = A::step(splat(weights[t / A::kTokens]), load(values + t / A::kTokens * 32), sum);
  if constexpr (A::kTokens == 2)
    if (t < range.end) sum = A::step(splat(weights[t / 2]), A::template half<0>(load(values + t / 2 * 32)), sum);
  return sum;
}

// out[r][32] = weights x values of 32 dimensions, each row over its own range, in the order of the keys.
template <class A, int kRows>
OCTAVO_INLINE void tile_values(const float* values, const TileRanges& ranges, int rows, const float* weights,
                               float (*out)[32]) {
  const Range common = ranges.common;
  for (int r = 0; r < kRows; ++r)
    for (int column = 0; column < 32; column += 16) {
      F sum = zero();
      if (r < rows)
        sum = row_values<A>(weights + r * kAttentionBlock, values + column,
                            {ranges.rows[r].begin, smaller(ranges.rows[r].end, common.begin)}, sum);
      store(out[r] + column, sum);
    }
  const int first = common.begin / A::kTokens, steps = (common.end - common.begin) / A::kTokens;
  for (int column = 0; column < 32 && steps > 0; column += 16 * kTileCols) {
    F sums[kRows][kTileCols];
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kTileCols; ++c) sums[r][c] = load(out[r] + column + 16 * c);
    accumulate<A, kAttentionBlock>(weights + first, values + first * 32 + column, steps, sums);
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kTileCols; ++c) store(out[r] + column + 16 * c, sums[r][c]);
  }
  for (int r = 0; r < rows; ++r)
    if (ranges.rows[r].end > common.end)
      for (int column = 0; column < 32; column += 16)
        store(out[r] + column,
              row_values<A>(weights + r * kAttentionBlock, values + column,
                            {larger(ranges.rows[r].begin, common.end), ranges.rows[r].end}, load(out[r] + column)));
}

// The rows [row0, row0 + rows) of a tile; all of them see at least one key of the block.
template <class A>
TileRanges tile_ranges(const AttentionTile& tile, int row0, int rows, bool* first_block) {
  TileRanges ranges{.rows = {}, .common = {0, kAttentionBlock}, .begin = kAttentionBlock, .end = 0};
  for (int r = 0; r < rows; ++r) {
    const int64_t position = tile.first_position + (row0 + r) / tile.group;
    const int64_t first_key = tile.window > 0 && position >= tile.window ? position - tile.window + 1 : 0;
    first_block[r] = tile.fresh || first_key >= tile.block_start;
    const int begin = first_key > tile.block_start ? static_cast<int>(first_key - tile.block_start) : 0;
    const int64_t keys = position + 1 - tile.block_start;
    const int end = keys < kAttentionBlock ? static_cast<int>(keys) : kAttentionBlock;
    ranges.rows[r] = {begin, end};
    ranges.begin = smaller(ranges.begin, begin);
    ranges.end = larger(ranges.end, end);
    ranges.common = {larger(ranges.common.begin, begin), smaller(ranges.common.end, end)};
  }
  ranges.common.begin = (ranges.common.begin + A::kTokens - 1) / A::kTokens * A::kTokens;
  ranges.common.end = ranges.common.end / A::kTokens * A::kTokens;
  if (ranges.common.end <= ranges.common.begin) ranges.common = {0, 0};
  return ranges;
}

template <class A, int kRows>
void attend_rows(const AttentionShape& shape, const AttentionTile& tile, int row0, int rows,
                 const AttentionMemory& memory, const SoftmaxState& state) {
  bool first_block[kTileRows];
  const TileRanges ranges = tile_ranges<A>(tile, row0, rows, first_block);
  const int64_t chunk_size = static_cast<int64_t>(tile.rows + 16) * kQueryStride;
  tile_scores<A, kRows>(shape, memory.queries + static_cast<int64_t>(row0) * kQueryStride, chunk_size,
                        ranges.begin / kPageTokens, (ranges.end + kPageTokens - 1) / kPageTokens, memory);
  alignas(64) float m[16] = {}, l[16] = {}, old_m[16] = {}, old_l[16] = {};
  for (int r = 0; r < rows; ++r) {
    float* row = memory.scores + r * kAttentionBlock;
    softmax_row(row, ranges.rows[r], memory, m + r, l + r);
    A::pack_weights(row, ranges.rows[r]);
    if (!first_block[r]) old_m[r] = state.m[row0 + r], old_l[r] = state.l[row0 + r];
  }
  MergeFactors factors;
  merge_sums(old_m, old_l, m, l, factors);
  for (int r = 0; r < rows; ++r) {
    state.m[row0 + r] = first_block[r] ? m[r] : old_m[r];
    state.l[row0 + r] = first_block[r] ? l[r] : old_l[r];
  }
  alignas(64) float out[kTileRows][32];
  for (int panel = 0; panel < shape.v_panels; ++panel) {
    tile_values<A, kRows>(memory.v_tile + static_cast<int64_t>(panel) * (kAttentionBlock / A::kTokens) * 32, ranges,
                          rows, memory.scores, out);
    for (int r = 0; r < rows; ++r) {
      float* o = state.o + static_cast<int64_t>(row0 + r) * 32 * shape.v_panels + panel * 32;
      const F a = splat(factors.a[r]), c = splat(factors.c[r]);
      for (int d = 0; d < 32; d += 16)
        store(o + d, first_block[r] ? load(out[r] + d) : fma(load(o + d), a, load(out[r] + d) * c));
    }
  }
}

template <class A>
void attend_tile(const AttentionShape& shape, const AttentionTile& tile, const AttentionMemory& memory,
                 const SoftmaxState& state) {
  // Tokens before the block see nothing of it, nor do those whose window starts behind it.
  const int64_t before = tile.block_start - tile.first_position;
  int first = before > 0 ? static_cast<int>(before) * tile.group : 0, last = tile.rows;
  if (tile.window > 0) {
    const int64_t tokens = tile.block_start + kAttentionBlock - 1 + tile.window - tile.first_position;
    if (tokens * tile.group < last) last = static_cast<int>(tokens * tile.group);
  }
  for (int chunks = (last - first + kTileRows - 1) / kTileRows; chunks > 0; --chunks) {
    const int rows = (last - first + chunks - 1) / chunks;
    if (rows <= kStepRows) {
      attend_rows<A, kStepRows>(shape, tile, first, rows, memory, state);
    } else if (rows <= 2 * kStepRows) {
      attend_rows<A, 2 * kStepRows>(shape, tile, first, rows, memory, state);
    } else {
      attend_rows<A, kTileRows>(shape, tile, first, rows, memory, state);
    }
    first += rows;
  }
}

// Wide tokens into the tiles that load_block has filled from the pages.
template <class A>
void load_wide(const AttentionShape& shape, const KeyBlock& block, const AttentionMemory& memory) {
  // Element `half` of step `step` in column `column` of a tile.
  const auto put = [](float* tile, int64_t step, int column, int half, const std::byte* from) {
    unsigned short bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    char* at = reinterpret_cast<char*>(tile + step * 32 + column);
    if constexpr (A::kTokens == 2) {
      __builtin_memcpy(at + 2 * half, &bits, sizeof bits);
    } else {
      const unsigned word = static_cast<unsigned>(bits) << 16;
      __builtin_memcpy(at, &word, sizeof word);
    }
  };
  const int hd = shape.head_dim;
  for (int t = block.begin; t < smaller(block.end, shape.k_wide); ++t)
    for (int d = 0; d < hd; ++d)
      put(memory.k_tile, d / A::kTokens, t, d % A::kTokens, block.wide + static_cast<int64_t>(t * hd + d) * 2);
  const std::byte* values = block.wide + static_cast<int64_t>(shape.k_wide) * hd * 2;
  for (int t = block.begin; t < smaller(block.end, shape.v_wide); ++t)
    for (int d = 0; d < hd; ++d)
      put(memory.v_tile, static_cast<int64_t>(d / 32) * (kAttentionBlock / A::kTokens) + t / A::kTokens, d % 32,
          t % A::kTokens, values + static_cast<int64_t>(t * hd + d) * 2);
}

// Pages of the block as tiles: K [page][step][32 keys], V [panel][step][32 dimensions].
template <class A>
void load_block(const AttentionShape& shape, const KeyBlock& block, const AttentionMemory& memory) {
  load_factors(shape, block, memory);
  const int first = block.begin / kPageTokens, last = (block.end + kPageTokens - 1) / kPageTokens;
  const int k_lines = shape.head_dim / 2, steps = query_steps<A>(shape);
  const auto put = [](const Pieces<A::kLineSteps>& pieces, float* to) {
    for (int s = 0; s < A::kLineSteps; ++s) {
      store(to + s * 32, pieces.v[s][0]);
      store(to + s * 32 + 16, pieces.v[s][1]);
    }
  };
  with_lines<A>(shape.k, [&](const auto& lines) {
    for (int page = first; page < last; ++page)
      for (int i = 0; i < k_lines; ++i)
        put(lines.template load<A>(block.pages[page] + i * lines.kBytes),
            memory.k_tile + (static_cast<int64_t>(page) * steps + i * A::kLineSteps) * 32);
  });
  with_lines<A>(shape.v, [&](const auto& lines) {
    constexpr int kPairs = kPageTokens / 2;
    for (int page = first; page < last; ++page)
      for (int pair = 0; pair < kPairs; ++pair)
        for (int panel = 0; panel < shape.v_panels; ++panel)
          put(lines.template load<A>(block.pages[page] + shape.v_offset +
                                     static_cast<int64_t>(pair * shape.v_panels + panel) * lines.kBytes),
              memory.v_tile +
                  (static_cast<int64_t>(panel) * kAttentionBlock / 2 + page * kPairs + pair) * (32 * A::kLineSteps));
  });
  if (block.wide != nullptr) load_wide<A>(shape, block, memory);
}

// A decode block the way of prefill: a tile of one token.
template <class A>
void attend_block_as_tile(const AttentionShape& shape, const KeyBlock& block, int rows, const AttentionMemory& memory,
                          const SoftmaxState& state) {
  load_block<A>(shape, block, memory);
  const AttentionTile tile{.rows = rows,
                           .group = rows,
                           .first_position = block.end - 1,
                           .window = block.begin > 0 ? block.end - block.begin : 0,
                           .block_start = 0,
                           .fresh = true};
  attend_tile<A>(shape, tile, memory, state);
}

template <class A>
void load_queries(const AttentionShape& shape, const float* q, int64_t token_stride, int num_tokens, int group,
                  const AttentionMemory& memory) {
  const int64_t chunk_size = static_cast<int64_t>(num_tokens * group + 16) * kQueryStride;
  for (int r = 0; r < num_tokens * group; ++r) {
    const float* from = q + r / group * token_stride + static_cast<int64_t>(r % group) * shape.head_dim;
    float* to = memory.queries + static_cast<int64_t>(r) * kQueryStride;
    for (int d = 0, chunk = 0; d < shape.head_dim; d += kQueryChunk * A::kTokens, ++chunk)
      A::pack_query(from + d, smaller(kQueryChunk * A::kTokens, shape.head_dim - d), to + chunk * chunk_size);
  }
}

}  // namespace
}  // namespace octavo
