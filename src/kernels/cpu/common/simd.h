// The vocabulary of the vector kernels: sixteen lanes of FP32 or INT32, held in one zmm register or in two ymm, by the
// flags of the file that includes this. Kernels written with it give the same bits on both. Everything has internal
// linkage and is inlined, so that objects built for a newer CPU define no symbol that another object could pick up.
//   F, I, M                 16 floats, 16 integers, 16 conditions; + - * / on F, + - & | on I are lane-wise
//   load, load_first        16 floats; the first n floats and zeros (n = 0..16)
//   store, store_first      likewise
//   first_lanes(n), within(a, b)     the conditions "lane < n" and "a <= lane < b"
//   keep(m, x), select(m, a, b)      x or zero; a or b
//   fma(a, b, c)            a x b + c with one rounding
//   sum_lanes(F)            lane[l] + lane[l + 8], then + 4, + 2, + 1 (kernels/producers.h)
//   store_bytes, store_halves        the low 8 or 16 bits of each lane
//   load_bytes, load_halves          lanes from unsigned 8 or 16 bits; load_f16, load_e4m3: floats (E4M3 without NaN)
//   Lookup(table)           lane by lane, the entry that the low four bits of an index name
#pragma once

#define OCTAVO_INLINE [[maybe_unused]] inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "kernels/cpu/common/simd_avx512.h"
#else
#include "kernels/cpu/common/simd_avx2.h"
#endif

#include "kernels/math.h"

namespace octavo {
namespace {

OCTAVO_INLINE F negate(F x) {
  return as_floats(as_bits(x) + splat_int(INT32_MIN));
}

// exp2_exact of kernels/math.h in every lane: x <= 127 or NaN.
OCTAVO_INLINE F exp2_lanes(F x) {
  constexpr float c1 = kExp2Coefficients[1], c2 = kExp2Coefficients[2], c3 = kExp2Coefficients[3],
                  c4 = kExp2Coefficients[4], c5 = kExp2Coefficients[5], c6 = kExp2Coefficients[6];
  const F n = round_even(x), f = x - n;
  F p = fma(splat(c6), f, splat(c5));
  p = fma(p, f, splat(c4));
  p = fma(p, f, splat(c3));
  p = fma(p, f, splat(c2));
  p = fma(p, f, splat(c1));
  p = fma(p, f, splat(1.0f));
  const F scaled = as_floats(as_bits(p) + shift_left<23>(to_int(n)));
  return keep(not_less(x, splat(kExp2Min)), scaled);
}

}  // namespace
}  // namespace octavo
