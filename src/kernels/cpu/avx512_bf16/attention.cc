// Attention for AVX-512 BF16: two products per step in vdpbf16ps, on q and weights rounded to BF16.
#include "kernels/cpu/common/attention_blocks_avx512.h"
#include "kernels/cpu/common/attention_tile_simd.h"

namespace octavo {
namespace {

// Two neighbouring elements per step. A lane holds a pair of BF16, the earlier one in its low half.
struct Dot {
  static constexpr int kTokens = 2, kLineSteps = 1;
  OCTAVO_INLINE static F step(F a, F b, F sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
  }
  OCTAVO_INLINE static Pieces<1> from_pairs(__m512i a, __m512i b) {
    return {{{_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)}}};
  }
  // The pairs with their other half zero.
  template <int kHalf>
  OCTAVO_INLINE static F half(F pairs) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(kHalf == 0 ? 0x0000FFFFu : 0xFFFF0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), mask));
  }
  OCTAVO_INLINE static __m512i pack(F low, F high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
  // Weights of a row in place: pair t / 2 of keys t and t + 1.
  OCTAVO_INLINE static void pack_weights(float* row, Range range) {
    for (int t = range.begin & ~31; t < range.end; t += 32)
      _mm512_storeu_si512(row + t / 2, pack(load(row + t), load(row + t + 16)));
  }
  OCTAVO_INLINE static void pack_query(const float* from, int n, float* to) {
    for (int d = 0; d < n; d += 32)
      _mm512_storeu_si512(to + d / 2, pack(load_first(from + d, smaller(16, n - d)),
                                           load_first(from + d + 16, larger(0, smaller(16, n - d - 16)))));
  }
};

}  // namespace
}  // namespace octavo

namespace octavo::avx512_bf16 {

extern const AttentionRows kAttentionRows;
const AttentionRows kAttentionRows{
    load_queries<Dot>, attend_block<Dot>, load_block<Dot>, attend_tile<Dot>, merge, finish};

}  // namespace octavo::avx512_bf16
