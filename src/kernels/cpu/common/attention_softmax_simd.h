// The parts of attention that rows share whatever the arithmetic: factors, softmax of a row, merging of states.
#pragma once

#include "kernels/cpu/common/attention_rows.h"
#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

OCTAVO_INLINE int smaller(int a, int b) {
  return a < b ? a : b;
}
OCTAVO_INLINE int larger(int a, int b) {
  return a > b ? a : b;
}

struct Range {
  int begin, end;
};

// Lanes of sixteen elements from `at` that lie in the range.
OCTAVO_INLINE M lanes_in(Range range, int at) {
  return within(larger(0, smaller(16, range.begin - at)), larger(0, smaller(16, range.end - at)));
}

// memory.k_factors and v_factors of the pages that hold a key of the block.
OCTAVO_INLINE void load_factors(const AttentionShape& shape, const KeyBlock& block, const AttentionMemory& memory) {
  for (int page = block.begin / kPageTokens; page * kPageTokens < block.end; ++page)
    for (int half = 0; half < kPageTokens; half += 16) {
      const auto* k_scales = reinterpret_cast<const float*>(block.pages[page] + shape.k_scales_offset);
      const auto* v_scales = reinterpret_cast<const float*>(block.pages[page] + shape.v_scales_offset);
      store(memory.k_factors + page * kPageTokens + half, load(k_scales + half) * splat(shape.scale));
      store(memory.v_factors + page * kPageTokens + half, load(v_scales + half));
    }
  if (block.wide == nullptr) return;
  for (int t = block.begin; t < smaller(block.end, shape.k_wide); ++t) memory.k_factors[t] = shape.scale;
  for (int t = block.begin; t < smaller(block.end, shape.v_wide); ++t) memory.v_factors[t] = 1.0f;
}

// From the sums q x k of the keys in `range` to their weights exp2(s - m) x v_scale, in place; keys outside the range
// that share sixteen lanes with one inside get weight 0.
OCTAVO_INLINE void softmax_row(float* row, Range range, const AttentionMemory& memory, float* m_out, float* l_out) {
  const int first = range.begin & ~15;
  const F lowest = splat(-__builtin_inff());
  F most = lowest;
  for (int i = first; i < range.end; i += 16) {
    F s = load(row + i) * load(memory.k_factors + i);
    if (i < range.begin || i + 16 > range.end) s = select(lanes_in(range, i), s, lowest);
    store(row + i, s);
    most = max(most, s);
  }
  const float m = max_lanes(most);
  F sum = zero();
  for (int i = first; i < range.end; i += 16) {
    F e = exp2_lanes(load(row + i) - splat(m)), weight = e * load(memory.v_factors + i);
    if (i < range.begin || i + 16 > range.end) {
      const M inside = lanes_in(range, i);
      e = keep(inside, e);
      weight = keep(inside, weight);
    }
    sum = sum + e;
    store(row + i, weight);
  }
  *m_out = m;
  *l_out = sum_lanes(sum);
}

// What merging does to sixteen rows' m and l; old x a + new x c is left to do for the outputs.
struct MergeFactors {
  alignas(64) float a[16], c[16];
};
OCTAVO_INLINE void merge_sums(float* m, float* l, const float* block_m, const float* block_l, MergeFactors& factors) {
  const F old_m = load(m), new_m = load(block_m), most = max(new_m, old_m);
  const F a = exp2_lanes(old_m - most), c = exp2_lanes(new_m - most);
  store(l, fma(load(l), a, load(block_l) * c));
  store(m, most);
  store(factors.a, a);
  store(factors.c, c);
}

void merge(const AttentionShape& shape, const SoftmaxState& total, const SoftmaxState& block, int rows) {
  const int width = 32 * shape.v_panels;
  for (int r0 = 0; r0 < rows; r0 += 16) {
    MergeFactors factors;
    merge_sums(total.m + r0, total.l + r0, block.m + r0, block.l + r0, factors);
    for (int r = r0; r < smaller(rows, r0 + 16); ++r) {
      const F a = splat(factors.a[r - r0]), c = splat(factors.c[r - r0]);
      float* out = total.o + static_cast<int64_t>(r) * width;
      const float* from = block.o + static_cast<int64_t>(r) * width;
      for (int d = 0; d < width; d += 16) store(out + d, fma(load(out + d), a, load(from + d) * c));
    }
  }
}

void finish(const AttentionShape& shape, const SoftmaxState& state, int num_tokens, int group, float* out,
            int64_t token_stride) {
  for (int r = 0; r < num_tokens * group; ++r) {
    const F inverse = splat(1.0f / state.l[r]);
    const float* o = state.o + static_cast<int64_t>(r) * 32 * shape.v_panels;
    float* to = out + r / group * token_stride + static_cast<int64_t>(r % group) * shape.head_dim;
    for (int d = 0; d < shape.head_dim; d += 16)
      store_first(to + d, load(o + d) * inverse, smaller(16, shape.head_dim - d));
  }
}

}  // namespace
}  // namespace octavo
