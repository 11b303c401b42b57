// exp2, written so that scalar and vector code give the same bits: the same operations in the same order.
// Polynomial: degree-6 minimax fit of 2^f on [-1/2, 1/2] with 2^0 = 1 exact (tools/fit_exp2.py), 3e-9 before rounding.
#pragma once

#include <cmath>

#include "numerics/bits.h"

namespace octavo {

inline constexpr float kExp2Coefficients[7] = {1.0f,           0.693147182f,   0.240226477f,   0.0555035956f,
                                               0.00961849932f, 0.00133909704f, 0.000153293076f};
inline constexpr float kExp2Min = -126.0f;  // below it the result is exactly 0

// 2^x for x <= 127; NaN stays NaN. Steps: n = round(x) to even, f = x - n, p = Horner with fma, result = p x 2^n (as p
// with n added to its exponent).
inline float exp2_exact(float x) {
  if (!(x >= kExp2Min)) return is_nan(x) ? x : 0.0f;
  const float n = std::nearbyint(x), f = x - n;
  float p = kExp2Coefficients[6];
  for (int i = 5; i >= 0; --i) p = std::fma(p, f, kExp2Coefficients[i]);
  return p * exp2_int(static_cast<int>(n));
}

inline constexpr float kLog2E = 1.44269504f;

// g / (1 + exp(-g)); exp(-g) = exp2((-g) x log2 e), the argument clamped to [-126, 127].
inline float silu(float g) {
  if (is_nan(g)) return g;
  float t = -g * kLog2E;
  t = t < kExp2Min ? kExp2Min : (t > 127.0f ? 127.0f : t);
  return g / (1.0f + exp2_exact(t));
}

}  // namespace octavo
