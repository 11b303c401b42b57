// Lines of K and V pages (formats/paged_kv.h) in registers, for AVX2: what kv_lines_avx512.h is for AVX-512, FP32 only.
#pragma once

#include <cstddef>

#include "kernels/cpu/common/attention_softmax_simd.h"

namespace octavo {
namespace {

constexpr int kTileRows = 6, kTileCols = 1;  // accumulators of a prefill tile

// v[s][h]: column s, rows 16 h .. 16 h + 15.
template <int kSteps>
struct Pieces {
  F v[kSteps][2];
};

// One element per step: sum += a x b in FP32, one rounding.
struct Fma {
  static constexpr int kTokens = 1, kLineSteps = 2;
  OCTAVO_INLINE static F step(F a, F b, F sum) { return fma(a, b, sum); }
  OCTAVO_INLINE static void pack_weights(float*, Range) {}
  OCTAVO_INLINE static void pack_query(const float* from, int n, float* to) {
    for (int d = 0; d < n; d += 16) store(to + d, load_first(from + d, smaller(16, n - d)));
  }
};

OCTAVO_INLINE __m256i load_32(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// 16 dwords, each two BF16 of neighbouring columns, as FP32.
OCTAVO_INLINE F even_column(__m256i lo, __m256i hi) {
  return as_floats(shift_left<16>(I{lo, hi}));
}
OCTAVO_INLINE F odd_column(__m256i lo, __m256i hi) {
  return as_floats(I{lo, hi} & splat_int(static_cast<int>(0xFFFF0000u)));
}

// ---- 32 codes of 8 bits to the high and low bytes of their BF16, which holds each of them exactly ----

struct HighLow {
  __m256i high, low;
};

OCTAVO_INLINE __m256i all_bytes(int x) {
  return _mm256_set1_epi8(static_cast<char>(x));
}
// A table of 16 bytes for vpshufb: entries 0..7 and 8..15, the first in the lowest byte.
OCTAVO_INLINE __m256i table(uint64_t first, uint64_t second) {
  const auto a = static_cast<long long>(first), b = static_cast<long long>(second);
  return _mm256_set_epi64x(b, a, b, a);
}

// In both formats the low BF16 byte of a normal code is the code itself, shifted left; its high byte depends on the
// upper exponent bits alone. Subnormal codes are put right by XOR with tables: `where` points into their upper entries
// for a subnormal and has its top bit set for any other code, for which vpshufb gives 0.

struct E4m3Codes {
  OCTAVO_INLINE static HighLow convert(__m256i codes) {
    const __m256i magnitude = _mm256_and_si256(codes, all_bytes(0x7F));
    const __m256i where = _mm256_add_epi8(magnitude, all_bytes(0x78));
    const __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(codes, 3), all_bytes(0x0F));
    // (e + 120) / 2, but 0 for e = 0; then m x 2^-9 = 0, 3B00, 3B80, 3BC0, 3C00, 3C20, 3C40, 3C60.
    __m256i high = _mm256_shuffle_epi8(table(0x3F3F3E3E3D3D3C00, 0x4343424241414040), exponent);
    high = _mm256_xor_si256(high, _mm256_shuffle_epi8(table(0, 0x3C3C3C3C3B3B3B00), where));
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(codes, 4), all_bytes(0xF0));
    low = _mm256_xor_si256(low, _mm256_shuffle_epi8(table(0, 0x10207040F0A01000), where));
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi8(magnitude, all_bytes(0x7F)), all_bytes(0x7F));
    const __m256i sign = _mm256_and_si256(codes, all_bytes(0x80));
    return {_mm256_or_si256(_mm256_or_si256(high, nan), sign), low};
  }
};

struct E5m2Codes {
  OCTAVO_INLINE static HighLow convert(__m256i codes) {
    const __m256i magnitude = _mm256_and_si256(codes, all_bytes(0x7F));
    const __m256i where = _mm256_add_epi8(magnitude, all_bytes(0x7C));
    const __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(codes, 3), all_bytes(0x0F));
    // (e + 112) / 2; then m x 2^-16 = 0, 3780, 3800, 3840.
    __m256i high = _mm256_add_epi8(exponent, all_bytes(0x38));
    high = _mm256_xor_si256(high, _mm256_shuffle_epi8(table(0, 0x00000F3800000000), where));
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(codes, 5), all_bytes(0xE0));
    low = _mm256_xor_si256(low, _mm256_shuffle_epi8(table(0, 0x2040A00000000000), where));
    const __m256i special = _mm256_and_si256(_mm256_cmpgt_epi8(magnitude, all_bytes(0x7B)), all_bytes(0x7F));
    const __m256i sign = _mm256_and_si256(codes, all_bytes(0x80));
    return {_mm256_or_si256(_mm256_or_si256(high, special), sign), low};
  }
};

template <class Codes>
struct FloatLines {
  static constexpr int kBytes = 64;
  template <class A>
  OCTAVO_INLINE Pieces<2> load(const std::byte* line) const {
    const HighLow a = Codes::convert(load_32(line)), b = Codes::convert(load_32(line + 32));
    const __m256i a0 = _mm256_unpacklo_epi8(a.low, a.high), b0 = _mm256_unpacklo_epi8(b.low, b.high);
    const __m256i a1 = _mm256_unpackhi_epi8(a.low, a.high), b1 = _mm256_unpackhi_epi8(b.low, b.high);
    return {{{even_column(a0, b0), even_column(a1, b1)}, {odd_column(a0, b0), odd_column(a1, b1)}}};
  }
};

// Sign and magnitude.
struct Int8Lines {
  static constexpr int kBytes = 64;
  OCTAVO_INLINE static F value(I magnitude, I sign) {
    const F x = {_mm256_cvtepi32_ps(magnitude.lo), _mm256_cvtepi32_ps(magnitude.hi)};
    return as_floats(as_bits(x) | sign);
  }
  template <class A>
  OCTAVO_INLINE Pieces<2> load(const std::byte* line) const {
    const I codes = {load_32(line), load_32(line + 32)};
    const I magnitude = codes & I{all_bytes(0x7F), all_bytes(0x7F)}, sign = codes & I{all_bytes(0x80), all_bytes(0x80)};
    const I words[2] = {{_mm256_unpacklo_epi8(magnitude.lo, sign.lo), _mm256_unpacklo_epi8(magnitude.hi, sign.hi)},
                        {_mm256_unpackhi_epi8(magnitude.lo, sign.lo), _mm256_unpackhi_epi8(magnitude.hi, sign.hi)}};
    Pieces<2> pieces;
    for (int h = 0; h < 2; ++h) {
      pieces.v[0][h] = value(words[h] & splat_int(0x7F), shift_left<16>(words[h] & splat_int(0x8000)));
      pieces.v[1][h] = value(shift_right<16>(words[h]) & splat_int(0x7F), words[h] & splat_int(INT32_MIN));
    }
    return pieces;
  }
};

struct Bf16Lines {
  static constexpr int kBytes = 128;
  template <class A>
  OCTAVO_INLINE Pieces<2> load(const std::byte* line) const {
    const __m256i a0 = load_32(line), b0 = load_32(line + 32), a1 = load_32(line + 64), b1 = load_32(line + 96);
    return {{{even_column(a0, b0), even_column(a1, b1)}, {odd_column(a0, b0), odd_column(a1, b1)}}};
  }
};

struct F32Lines {
  static constexpr int kBytes = 256;
  // 16 FP32 pairs -> the first or the second of each pair (kSelect 0x88 or 0xDD).
  template <int kSelect>
  OCTAVO_INLINE static F pick(const float* pairs) {
    const auto eight = [](const float* p) {
      const __m256 mixed = _mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), kSelect);
      return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xD8));
    };
    return {eight(pairs), eight(pairs + 16)};
  }
  template <class A>
  OCTAVO_INLINE Pieces<2> load(const std::byte* line) const {
    const auto* pairs = reinterpret_cast<const float*>(line);
    return {{{pick<0x88>(pairs), pick<0x88>(pairs + 32)}, {pick<0xDD>(pairs), pick<0xDD>(pairs + 32)}}};
  }
};

// Calls body(lines) with the decoder of an element type.
template <class A, class Body>
OCTAVO_INLINE void with_lines(KvKind kind, const Body& body) {
  switch (kind) {
    case KvKind::kF32:
      return body(F32Lines{});
    case KvKind::kBf16:
      return body(Bf16Lines{});
    case KvKind::kE4m3:
    case KvKind::kFiniteE4m3:
      return body(FloatLines<E4m3Codes>{});
    case KvKind::kE5m2:
    case KvKind::kFiniteE5m2:
      return body(FloatLines<E5m2Codes>{});
    case KvKind::kInt8:
      return body(Int8Lines{});
  }
}

}  // namespace
}  // namespace octavo
