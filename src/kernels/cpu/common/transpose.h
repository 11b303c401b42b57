// Transposition of small matrices in AVX2 registers.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace octavo {

inline __m256i load_vector(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store_vector(void* p, __m256i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x);
}
// 16 bytes from `low` and 16 from `high`.
inline __m256i load_halves(const void* low, const void* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(low))),
                                 _mm_loadu_si128(static_cast<const __m128i*>(high)), 1);
}

// An 8 x 8 matrix of 32-bit elements.
inline void transpose_dwords(__m256i (&m)[8]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi32(m[2 * i], m[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi32(m[2 * i], m[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    m[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    m[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

// Two 8 x 8 matrices of 16-bit elements, one in the low and one in the high 128-bit lanes.
inline void transpose_words(__m256i (&m)[8]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi16(m[2 * i], m[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi16(m[2 * i], m[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_unpacklo_epi32(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm256_unpackhi_epi32(pairs[i + j], pairs[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    m[2 * i] = _mm256_unpacklo_epi64(quads[i], quads[i + 4]);
    m[2 * i + 1] = _mm256_unpackhi_epi64(quads[i], quads[i + 4]);
  }
}

}  // namespace octavo
