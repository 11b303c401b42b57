// Decodes a line of 64 E4M3 codes with two table look-ups of 128 entries; NaN codes stay NaN.
#pragma once

#include "kernels/cpu/common/e4m3_lines.h"
#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

constexpr E4m3Tables kE4m3Tables = make_e4m3_tables();

struct E4m3Lines {
  __m512i high0 = _mm512_load_si512(kE4m3Tables.high), high1 = _mm512_load_si512(kE4m3Tables.high + 64);
  __m512i low0 = _mm512_load_si512(kE4m3Tables.low), low1 = _mm512_load_si512(kE4m3Tables.low + 64);
  __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));

  // Pairs of columns as BF16: rows 0-15 in `a`, rows 16-31 in `b`.
  __attribute__((always_inline)) void decode(const std::byte* line, I& a, I& b) const {
    const __m512i codes = _mm512_loadu_si512(line);
    __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    high = _mm512_ternarylogic_epi32(high, codes, sign, 0xF8);  // high | (codes & sign)
    a = {_mm512_unpacklo_epi8(low, high)};
    b = {_mm512_unpackhi_epi8(low, high)};
  }
};

}  // namespace
}  // namespace octavo
