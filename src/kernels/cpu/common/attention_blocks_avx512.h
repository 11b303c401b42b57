// Decode attention for AVX-512: one block of keys against the few rows of one token, K and V decoded in registers as
// they stream by. Rows, pages and dimensions are independent, so several of them in flight hide the latency of the one
// chain that each sum is.
#pragma once

#include "kernels/cpu/common/attention_tile_simd.h"
#include "kernels/cpu/common/kv_lines_avx512.h"

namespace octavo {
namespace {

constexpr int kMaxBlockRows = 8;  // rows of one pass over the pages

// Pages in flight for scores, and panels of 32 dimensions in flight for values: 8 to 16 accumulators.
constexpr int pages_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}
constexpr int panels_at_once(int rows) {
  return rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
}

template <int kBytes>
OCTAVO_INLINE void prefetch_line(const std::byte* line) {
#pragma GCC unroll 4
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(line + i), _MM_HINT_T1);
}

// The page that takes this one's place in the next block; itself where there is none.
OCTAVO_INLINE const std::byte* next_page(const KeyBlock* next, int page, const std::byte* current) {
  return next != nullptr && next->pages[page] != nullptr ? next->pages[page] : current;
}

// Sums q x k of kRows rows and kPages pages from `first` on; meanwhile the next block's K is brought into L2.
template <class A, int kRows, int kPages, class Lines>
OCTAVO_INLINE void page_scores(const Lines& lines, const AttentionShape& shape, const KeyBlock& block,
                               const KeyBlock* next, int first, const float* queries, int64_t chunk_size,
                               float* scores) {
  constexpr int kChunkLines = kQueryChunk / A::kLineSteps;
  F sums[kPages][kRows][2] = {};
  const std::byte *pages[kPages], *ahead[kPages];
#pragma GCC unroll 4
  for (int u = 0; u < kPages; ++u) {
    pages[u] = block.pages[first + u];
    ahead[u] = next_page(next, first + u, pages[u]);
  }
  int64_t at = 0;
  for (int i = 0; i < shape.head_dim / 2; i += kChunkLines, queries += chunk_size) {
    const int n = smaller(kChunkLines, shape.head_dim / 2 - i);
    for (int j = 0; j < n; ++j, at += Lines::kBytes)
#pragma GCC unroll 4
      for (int u = 0; u < kPages; ++u) {
        const auto pieces = lines.template load<A>(pages[u] + at);
        prefetch_line<Lines::kBytes>(ahead[u] + at);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
          for (int s = 0; s < A::kLineSteps; ++s) {
            const F x = splat(queries[r * kQueryStride + j * A::kLineSteps + s]);
            sums[u][r][0] = A::step(x, pieces.v[s][0], sums[u][r][0]);
            sums[u][r][1] = A::step(x, pieces.v[s][1], sums[u][r][1]);
          }
      }
  }
#pragma GCC unroll 4
  for (int u = 0; u < kPages; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      store(scores + r * kAttentionBlock + (first + u) * kPageTokens, sums[u][r][0]);
      store(scores + r * kAttentionBlock + (first + u) * kPageTokens + 16, sums[u][r][1]);
    }
}

template <class A, int kRows, class Lines>
void block_scores(const Lines& lines, const AttentionShape& shape, const KeyBlock& block, const KeyBlock* next,
                  const float* queries, int64_t chunk_size, float* scores) {
  constexpr int kPages = pages_at_once(kRows);
  int page = block.begin / kPageTokens;
  const int last = (block.end + kPageTokens - 1) / kPageTokens;
  for (; page + kPages <= last; page += kPages)
    page_scores<A, kRows, kPages>(lines, shape, block, next, page, queries, chunk_size, scores);
  for (; page < last; ++page) page_scores<A, kRows, 1>(lines, shape, block, next, page, queries, chunk_size, scores);
}

// Which of the two tokens of a V line count.
enum class Tokens { kEven, kOdd, kBoth };

template <class A, Tokens kTokens, int kRows, int kPanels, class Lines>
OCTAVO_INLINE void pair_values(const Lines& lines, const std::byte* line, const float* weights,
                               F (&sums)[kRows][kPanels][2]) {
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    auto pieces = lines.template load<A>(line + p * Lines::kBytes);
    if constexpr (A::kTokens == 2 && kTokens != Tokens::kBoth)
      for (F& piece : pieces.v[0]) piece = A::template half<kTokens == Tokens::kOdd>(piece);
    constexpr int kFirst = A::kTokens == 1 && kTokens == Tokens::kOdd ? 1 : 0;
    constexpr int kLast = A::kTokens == 1 && kTokens == Tokens::kEven ? 1 : A::kLineSteps;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int s = kFirst; s < kLast; ++s) {
        const F x = splat(weights[r * kAttentionBlock + s]);
        sums[r][p][0] = A::step(x, pieces.v[s][0], sums[r][p][0]);
        sums[r][p][1] = A::step(x, pieces.v[s][1], sums[r][p][1]);
      }
  }
}

// Output sums of kRows rows in kPanels panels from `panel` on; meanwhile the next block's V is brought into L2.
template <class A, int kRows, int kPanels, class Lines>
OCTAVO_INLINE void panel_values(const Lines& lines, const AttentionShape& shape, const KeyBlock& block,
                                const KeyBlock* next, int panel, const float* weights, float* out) {
  F sums[kRows][kPanels][2] = {};
  const int64_t line_step = static_cast<int64_t>(shape.v_panels) * Lines::kBytes;
  for (int page = block.begin / kPageTokens; page * kPageTokens < block.end; ++page) {
    const int64_t offset = static_cast<int64_t>(panel) * Lines::kBytes;
    const std::byte* values = block.pages[page] + shape.v_offset + offset;
    const std::byte* ahead = next_page(next, page, block.pages[page]) + shape.v_offset + offset;
    const float* row = weights + page * (kPageTokens / A::kTokens);
    int t = larger(0, block.begin - page * kPageTokens);
    const int end = smaller(kPageTokens, block.end - page * kPageTokens);
    const auto at = [&](int token) { return values + token / 2 * line_step; };
    const auto from = [&](int token) { return row + token / 2 * A::kLineSteps; };
    if (t % 2 != 0) {
      pair_values<A, Tokens::kOdd>(lines, at(t), from(t), sums);
      ++t;
    }
    for (; t + 2 <= end; t += 2) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) prefetch_line<Lines::kBytes>(ahead + t / 2 * line_step + p * Lines::kBytes);
      pair_values<A, Tokens::kBoth>(lines, at(t), from(t), sums);
    }
    if (t < end) pair_values<A, Tokens::kEven>(lines, at(t), from(t), sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < 2 * kPanels; ++p)
      store(out + static_cast<int64_t>(r) * 32 * shape.v_panels + panel * 32 + p * 16, sums[r][p / 2][p % 2]);
}

template <class A, int kRows, class Lines>
void block_values(const Lines& lines, const AttentionShape& shape, const KeyBlock& block, const KeyBlock* next,
                  const float* weights, float* out) {
  constexpr int kPanels = panels_at_once(kRows);
  int panel = 0;
  for (; panel + kPanels <= shape.v_panels; panel += kPanels)
    panel_values<A, kRows, kPanels>(lines, shape, block, next, panel, weights, out);
  if constexpr (kPanels > 2)
    for (; panel + 2 <= shape.v_panels; panel += 2)
      panel_values<A, kRows, 2>(lines, shape, block, next, panel, weights, out);
  if constexpr (kPanels > 1)
    for (; panel < shape.v_panels; ++panel) panel_values<A, kRows, 1>(lines, shape, block, next, panel, weights, out);
}

// body(std::integral_constant-like value) with the number of rows as a constant, 1 .. kMaxBlockRows.
template <int kRows>
struct Rows {
  static constexpr int value = kRows;
};
template <class Body>
OCTAVO_INLINE void with_rows(int rows, const Body& body) {
  switch (rows) {
    case 1:
      return body(Rows<1>{});
    case 2:
      return body(Rows<2>{});
    case 3:
      return body(Rows<3>{});
    case 4:
      return body(Rows<4>{});
    case 5:
      return body(Rows<5>{});
    case 6:
      return body(Rows<6>{});
    case 7:
      return body(Rows<7>{});
    default:
      return body(Rows<8>{});
  }
}

// Scales lie behind V.
OCTAVO_INLINE void prefetch_scales(const AttentionShape& shape, const KeyBlock& block) {
  for (int page = block.begin / kPageTokens; page * kPageTokens < block.end; ++page)
    prefetch_line<256>(block.pages[page] + shape.k_scales_offset);
}

template <class A>
void attend_block(const AttentionShape& shape, const KeyBlock& block, const KeyBlock* next, int rows,
                  const AttentionMemory& memory, const SoftmaxState& state) {
  if (block.wide != nullptr) return attend_block_as_tile<A>(shape, block, rows, memory, state);
  const int64_t chunk_size = static_cast<int64_t>(rows + 16) * kQueryStride;
  prefetch_scales(shape, block);
  for (int row0 = 0; row0 < rows; row0 += kMaxBlockRows) {
    const int count = smaller(kMaxBlockRows, rows - row0);
    with_lines<A>(shape.k, [&](const auto& lines) {
      with_rows(count, [&](auto constant) {
        block_scores<A, decltype(constant)::value>(lines, shape, block, next, memory.queries + row0 * kQueryStride,
                                                   chunk_size, memory.scores);
      });
    });
    if (row0 == 0) load_factors(shape, block, memory);
    for (int r = 0; r < count; ++r) {
      float* row = memory.scores + r * kAttentionBlock;
      softmax_row(row, {block.begin, block.end}, memory, state.m + row0 + r, state.l + row0 + r);
      A::pack_weights(row, {block.begin, block.end});
    }
    with_lines<A>(shape.v, [&](const auto& lines) {
      with_rows(count, [&](auto constant) {
        block_values<A, decltype(constant)::value>(lines, shape, block, next, memory.scores,
                                                   state.o + static_cast<int64_t>(row0) * 32 * shape.v_panels);
      });
    });
  }
}

}  // namespace
}  // namespace octavo
