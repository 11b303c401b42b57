// The Walsh-Hadamard transform of blocks of a row, written so that scalar and vector code give the same bits: every
// step is one addition, subtraction or multiplication per value.
#pragma once

#include <cmath>
#include <cstdint>

namespace octavo {

// The largest power of two that divides n; n > 0.
constexpr int64_t largest_power_of_two(int64_t n) {
  return n & -n;
}

// The factor that makes the transform of `block` values orthogonal, and with it its own inverse.
inline float hadamard_scale(int64_t block) {
  return 1.0f / std::sqrt(static_cast<float>(block));
}

// Each block of `block` values (a power of two that divides n) becomes H x / sqrt(block), H in Sylvester's order. Steps
// of half = 1, 2, 4, ...: pairs (a, b) at distance `half` become (a + b, a - b); then every value x hadamard_scale().
inline void hadamard_blocks(float* x, int64_t n, int64_t block) {
  for (int64_t half = 1; half < block; half *= 2)
    for (int64_t begin = 0; begin < n; begin += 2 * half)
      for (int64_t i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
  const float scale = hadamard_scale(block);
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace octavo
