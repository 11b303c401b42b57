// simd.h for AVX-512 (F, BW, DQ, VL, VBMI): sixteen lanes are one zmm register.
#pragma once

// g++ 12 takes the "undefined" operands inside its own intrinsics for uninitialized variables.
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace octavo {
namespace {

using F = __m512;
using M = __mmask16;
struct I {
  __m512i v;
};

OCTAVO_INLINE M first_lanes(int64_t n) {
  return static_cast<M>(_bzhi_u32(0xFFFFu, static_cast<unsigned>(n)));
}

// The condition "begin <= lane < end", for 0 <= begin, end <= 16.
OCTAVO_INLINE M within(int begin, int end) {
  return static_cast<M>(first_lanes(end) & ~first_lanes(begin));
}

OCTAVO_INLINE F load(const float* p) {
  return _mm512_loadu_ps(p);
}
OCTAVO_INLINE F load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
OCTAVO_INLINE void store(float* p, F x) {
  _mm512_storeu_ps(p, x);
}
OCTAVO_INLINE void store_first(float* p, F x, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
OCTAVO_INLINE F splat(float x) {
  return _mm512_set1_ps(x);
}
OCTAVO_INLINE I splat_int(int x) {
  return {_mm512_set1_epi32(x)};
}
OCTAVO_INLINE F zero() {
  return _mm512_setzero_ps();
}

OCTAVO_INLINE F fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
// The larger and the smaller; the second operand where either is NaN.
OCTAVO_INLINE F max(F a, F b) {
  return _mm512_max_ps(a, b);
}
OCTAVO_INLINE F min(F a, F b) {
  return _mm512_min_ps(a, b);
}
OCTAVO_INLINE F round_even(F x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
OCTAVO_INLINE I to_int(F x) {
  return {_mm512_cvtps_epi32(x)};
}

OCTAVO_INLINE F to_float(I x) {
  return _mm512_cvtepi32_ps(x.v);
}

OCTAVO_INLINE I load_bytes(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
OCTAVO_INLINE I load_halves(const void* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
OCTAVO_INLINE F load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
OCTAVO_INLINE F load_e4m3(const void* p) {
  // With its upper bits moved apart, a code is the FP16 of value / 256.
  const __m256i codes = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 7);
  const __m256i halves = _mm256_and_si256(codes, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
  return _mm512_cvtph_ps(halves) * _mm512_set1_ps(256.0f);
}

struct Lookup {
  F table;
  OCTAVO_INLINE explicit Lookup(const float* sixteen) : table(load(sixteen)) {}
  OCTAVO_INLINE F operator()(I index) const { return _mm512_permutexvar_ps(index.v, table); }
};

OCTAVO_INLINE I as_bits(F x) {
  return {_mm512_castps_si512(x)};
}
OCTAVO_INLINE F as_floats(I x) {
  return _mm512_castsi512_ps(x.v);
}
OCTAVO_INLINE I operator+(I a, I b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
OCTAVO_INLINE I operator-(I a, I b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
OCTAVO_INLINE I operator&(I a, I b) {
  return {_mm512_and_si512(a.v, b.v)};
}
OCTAVO_INLINE I operator|(I a, I b) {
  return {_mm512_or_si512(a.v, b.v)};
}
OCTAVO_INLINE I max(I a, I b) {
  return {_mm512_max_epi32(a.v, b.v)};
}
OCTAVO_INLINE I min(I a, I b) {
  return {_mm512_min_epi32(a.v, b.v)};
}
template <int kBits>
OCTAVO_INLINE I shift_left(I x) {
  return {_mm512_slli_epi32(x.v, kBits)};
}
template <int kBits>
OCTAVO_INLINE I shift_right(I x) {
  return {_mm512_srli_epi32(x.v, kBits)};
}

template <int kBits>
OCTAVO_INLINE I shift_right_signed(I x) {
  return {_mm512_srai_epi32(x.v, kBits)};
}

OCTAVO_INLINE I shift_left(I x, int bits) {
  return {_mm512_slli_epi32(x.v, static_cast<unsigned>(bits))};
}
OCTAVO_INLINE I shift_right(I x, int bits) {
  return {_mm512_srli_epi32(x.v, static_cast<unsigned>(bits))};
}

OCTAVO_INLINE M is_nan_lane(F x) {
  return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}
OCTAVO_INLINE M not_less(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ);
}
OCTAVO_INLINE M is_negative(I x) {
  return _mm512_movepi32_mask(x.v);
}
OCTAVO_INLINE F keep(M m, F x) {
  return _mm512_maskz_mov_ps(m, x);
}
OCTAVO_INLINE I keep(M m, I x) {
  return {_mm512_maskz_mov_epi32(m, x.v)};
}
OCTAVO_INLINE F select(M m, F a, F b) {
  return _mm512_mask_blend_ps(m, b, a);
}
OCTAVO_INLINE I select(M m, I a, I b) {
  return {_mm512_mask_blend_epi32(m, b.v, a.v)};
}

OCTAVO_INLINE float sum_lanes(F x) {
  const __m256 eight = _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1);
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE uint32_t max_lanes(I x) {
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(x.v));
}
OCTAVO_INLINE float max_lanes(F x) {
  return _mm512_reduce_max_ps(x);
}

OCTAVO_INLINE void store_bytes(void* p, I x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
// 64 bytes from four registers whose lanes are below 256.
OCTAVO_INLINE void store_bytes(void* p, I a, I b, I c, I d) {
  const __m512i order =
      _mm512_set_epi32(0x3F3B3733, 0x2F2B2723, 0x1F1B1713, 0x0F0B0703, 0x3E3A3632, 0x2E2A2622, 0x1E1A1612, 0x0E0A0602,
                       0x3D393531, 0x2D292521, 0x1D191511, 0x0D090501, 0x3C383430, 0x2C282420, 0x1C181410, 0x0C080400);
  const I words = (a | shift_left<8>(b)) | (shift_left<16>(c) | shift_left<24>(d));
  _mm512_storeu_si512(p, _mm512_permutexvar_epi8(order, words.v));
}
OCTAVO_INLINE void store_halves(void* p, I x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}

// 32 codes of 8 bits into column 0 or 1 of a line of 32 rows x 2 columns (formats/paged_kv.h); the other column, which
// another thread may be writing, is not touched.
OCTAVO_INLINE void store_panel_column(void* line, const char* codes, int column) {
  // Byte 2 i and 2 i + 1 take row 4 (i / 8) + i % 4, + 16 where i % 8 >= 4.
  const __m512i rows = _mm512_set_epi8(31, 31, 30, 30, 29, 29, 28, 28, 15, 15, 14, 14, 13, 13, 12, 12, 27, 27, 26, 26,
                                       25, 25, 24, 24, 11, 11, 10, 10, 9, 9, 8, 8, 23, 23, 22, 22, 21, 21, 20, 20, 7, 7,
                                       6, 6, 5, 5, 4, 4, 19, 19, 18, 18, 17, 17, 16, 16, 3, 3, 2, 2, 1, 1, 0, 0);
  const __m512i both = _mm512_permutexvar_epi8(
      rows, _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
  _mm512_mask_storeu_epi8(line, 0x5555555555555555ull << column, both);
}

}  // namespace
}  // namespace octavo
