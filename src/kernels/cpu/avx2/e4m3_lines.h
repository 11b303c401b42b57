// Decodes a line of 64 E4M3 codes with AVX2, by tables of 16 entries. NaN codes come out as +-480: their rows have a
// scale that is NaN (linear_panels.h).
#pragma once

#include <cstddef>

#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

// The upper 16 bits of the FP32 value of a code s eeee mmm, for eeee > 0:
//   upper byte  s, then (eeee + 120) >> 1: depends on the upper four bits of the code
//   lower byte  e mmm 0000: the lower four bits of the code, shifted
// Codes 0-15 of either sign hold zero, the subnormals and the first binade: for them two tables over the lower four
// bits give the upper byte, and what to flip in the lower. The index 0x70 + (code & 0x7F) is below 0x80 only for these
// codes; for the others vpshufb gives zero.
struct E4m3Lines {
  __m256i upper = both_lanes(_mm_setr_epi8(0x00, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43, -0x80, -0x43, -0x42, -0x41,
                                           -0x40, -0x3F, -0x3E, -0x3D));
  __m256i first_upper = both_lanes(
      _mm_setr_epi8(0x00, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C));
  __m256i first_flips =
      both_lanes(_mm_setr_epi8(0x00, 0x10, -0x60, -0x10, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0, 0, 0));

  static __attribute__((always_inline)) __m256i both_lanes(__m128i x) { return _mm256_broadcastsi128_si256(x); }

  // 32 codes: the words of each lane's low and high eight codes.
  __attribute__((always_inline)) void decode_half(__m256i codes, __m256i& low_words, __m256i& high_words) const {
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    const __m256i first = _mm256_add_epi8(_mm256_and_si256(codes, _mm256_set1_epi8(0x7F)), _mm256_set1_epi8(0x70));
    const __m256i top = _mm256_shuffle_epi8(upper, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
    const __m256i shifted = _mm256_and_si256(_mm256_slli_epi16(codes, 4), _mm256_set1_epi8(static_cast<char>(0xF0)));
    const __m256i high = _mm256_or_si256(top, _mm256_shuffle_epi8(first_upper, first));
    const __m256i low = _mm256_xor_si256(shifted, _mm256_shuffle_epi8(first_flips, first));
    low_words = _mm256_unpacklo_epi8(low, high);
    high_words = _mm256_unpackhi_epi8(low, high);
  }

  // Pairs of columns as BF16: rows 0-15 in `a`, rows 16-31 in `b`.
  __attribute__((always_inline)) void decode(const std::byte* line, I& a, I& b) const {
    const auto* halves = reinterpret_cast<const __m256i*>(line);
    decode_half(_mm256_loadu_si256(halves), a.lo, b.lo);
    decode_half(_mm256_loadu_si256(halves + 1), a.hi, b.hi);
  }
};

}  // namespace
}  // namespace octavo
