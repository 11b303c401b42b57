// simd.h for AVX2 and FMA: sixteen lanes are two ymm registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo {
namespace {

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
struct M {
  __m256i lo, hi;
};

OCTAVO_INLINE M first_lanes(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
  return {_mm256_cmpgt_epi32(count, _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)),
          _mm256_cmpgt_epi32(count, _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8))};
}

// The condition "begin <= lane < end", for 0 <= begin, end <= 16.
OCTAVO_INLINE M within(int begin, int end) {
  const M inside = first_lanes(end), before = first_lanes(begin);
  return {_mm256_andnot_si256(before.lo, inside.lo), _mm256_andnot_si256(before.hi, inside.hi)};
}

OCTAVO_INLINE F load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
OCTAVO_INLINE F load_first(const float* p, int64_t n) {
  const M m = first_lanes(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
OCTAVO_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
OCTAVO_INLINE void store_first(float* p, F x, int64_t n) {
  const M m = first_lanes(n);
  _mm256_maskstore_ps(p, m.lo, x.lo);
  _mm256_maskstore_ps(p + 8, m.hi, x.hi);
}
OCTAVO_INLINE F splat(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
OCTAVO_INLINE I splat_int(int x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
OCTAVO_INLINE F zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}

OCTAVO_INLINE F operator+(F a, F b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F operator-(F a, F b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F operator*(F a, F b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F operator/(F a, F b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// The larger and the smaller; the second operand where either is NaN.
OCTAVO_INLINE F max(F a, F b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F min(F a, F b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F round_even(F x) {
  return {_mm256_round_ps(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
OCTAVO_INLINE I to_int(F x) {
  return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)};
}

OCTAVO_INLINE F to_float(I x) {
  return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}

OCTAVO_INLINE I load_bytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}
OCTAVO_INLINE I load_halves(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))};
}
OCTAVO_INLINE F load_f16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
OCTAVO_INLINE F load_e4m3(const void* p) {
  // With its upper bits moved apart, a code is the FP16 of value / 256.
  const __m256i codes = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 7);
  const __m256i halves = _mm256_and_si256(codes, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
  const __m256 scale = _mm256_set1_ps(256.0f);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), scale),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), scale)};
}

struct Lookup {
  __m256 low, high;
  OCTAVO_INLINE explicit Lookup(const float* sixteen)
      : low(_mm256_loadu_ps(sixteen)), high(_mm256_loadu_ps(sixteen + 8)) {}
  OCTAVO_INLINE __m256 eight(__m256i index) const {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                            _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  }
  OCTAVO_INLINE F operator()(I index) const { return {eight(index.lo), eight(index.hi)}; }
};

OCTAVO_INLINE I as_bits(F x) {
  return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}
OCTAVO_INLINE F as_floats(I x) {
  return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
OCTAVO_INLINE I operator+(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I operator-(I a, I b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I operator&(I a, I b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
OCTAVO_INLINE I operator|(I a, I b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
OCTAVO_INLINE I max(I a, I b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I min(I a, I b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
template <int kBits>
OCTAVO_INLINE I shift_left(I x) {
  return {_mm256_slli_epi32(x.lo, kBits), _mm256_slli_epi32(x.hi, kBits)};
}
template <int kBits>
OCTAVO_INLINE I shift_right(I x) {
  return {_mm256_srli_epi32(x.lo, kBits), _mm256_srli_epi32(x.hi, kBits)};
}

template <int kBits>
OCTAVO_INLINE I shift_right_signed(I x) {
  return {_mm256_srai_epi32(x.lo, kBits), _mm256_srai_epi32(x.hi, kBits)};
}

OCTAVO_INLINE I shift_left(I x, int bits) {
  return {_mm256_slli_epi32(x.lo, bits), _mm256_slli_epi32(x.hi, bits)};
}
OCTAVO_INLINE I shift_right(I x, int bits) {
  return {_mm256_srli_epi32(x.lo, bits), _mm256_srli_epi32(x.hi, bits)};
}

template <int kCondition>
OCTAVO_INLINE M compare(F a, F b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, kCondition)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, kCondition))};
}
OCTAVO_INLINE M is_nan_lane(F x) {
  return compare<_CMP_UNORD_Q>(x, x);
}
OCTAVO_INLINE M not_less(F a, F b) {
  return compare<_CMP_NLT_UQ>(a, b);
}
OCTAVO_INLINE M is_negative(I x) {
  return {_mm256_srai_epi32(x.lo, 31), _mm256_srai_epi32(x.hi, 31)};
}
OCTAVO_INLINE I keep(M m, I x) {
  return {_mm256_and_si256(m.lo, x.lo), _mm256_and_si256(m.hi, x.hi)};
}
OCTAVO_INLINE F keep(M m, F x) {
  return as_floats(keep(m, as_bits(x)));
}
OCTAVO_INLINE I select(M m, I a, I b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}
OCTAVO_INLINE F select(M m, F a, F b) {
  return as_floats(select(m, as_bits(a), as_bits(b)));
}

OCTAVO_INLINE float sum_lanes(F x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE uint32_t max_lanes(I x) {
  const __m256i eight = _mm256_max_epi32(x.lo, x.hi);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1))));
}
OCTAVO_INLINE float max_lanes(F x) {
  const __m256 eight = _mm256_max_ps(x.lo, x.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// 16 lanes below 2^16 as 16-bit words in order.
OCTAVO_INLINE __m256i narrow_to_halves(I x) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.lo, x.hi), 0xD8);
}
OCTAVO_INLINE void store_halves(void* p, I x) {
  const I low = x & splat_int(0xFFFF);
  _mm256_storeu_si256(static_cast<__m256i*>(p), narrow_to_halves(low));
}
OCTAVO_INLINE void store_bytes(void* p, I x) {
  const __m256i halves = narrow_to_halves(x & splat_int(0xFF));
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}
OCTAVO_INLINE void store_bytes(void* p, I a, I b, I c, I d) {
  auto* bytes = static_cast<char*>(p);
  store_bytes(bytes, a);
  store_bytes(bytes + 16, b);
  store_bytes(bytes + 32, c);
  store_bytes(bytes + 48, d);
}

// 32 codes of 8 bits into column 0 or 1 of a line of 32 rows x 2 columns (formats/paged_kv.h); the other column, which
// another thread may be writing, is not touched.
OCTAVO_INLINE void store_panel_column(void* line, const char* codes, int column) {
  char* to = static_cast<char*>(line) + column;
  for (int quad = 0; quad < 4; ++quad, to += 16)
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = codes[4 * quad + i];
      to[8 + 2 * i] = codes[16 + 4 * quad + i];
    }
}

}  // namespace
}  // namespace octavo
