// Lines of K and V pages (formats/paged_kv.h) in registers, for AVX-512. A line is 32 rows x 2 columns; load<A> gives
// it as the steps of arithmetic A: Fma has a step per column, in FP32; Dot (avx512_bf16) has one step, of BF16 pairs.
#pragma once

#include "kernels/cpu/common/attention_softmax_simd.h"
#include "kernels/cpu/common/kv_tables.h"

namespace octavo {
namespace {

constexpr int kTileRows = 12, kTileCols = 2;  // accumulators of a prefill tile

// v[s][h]: step s, rows 16 h .. 16 h + 15.
template <int kSteps>
struct Pieces {
  F v[kSteps][2];
};

// One element per step: sum += a x b in FP32, one rounding.
struct Fma {
  static constexpr int kTokens = 1, kLineSteps = 2;
  OCTAVO_INLINE static F step(F a, F b, F sum) { return fma(a, b, sum); }
  OCTAVO_INLINE static Pieces<2> from_pairs(__m512i a, __m512i b) {
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {{{_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16))},
             {_mm512_castsi512_ps(_mm512_and_si512(a, odd)), _mm512_castsi512_ps(_mm512_and_si512(b, odd))}}};
  }
  OCTAVO_INLINE static void pack_weights(float*, Range) {}
  OCTAVO_INLINE static void pack_query(const float* from, int n, float* to) {
    for (int d = 0; d < n; d += 16) store(to + d, load_first(from + d, smaller(16, n - d)));
  }
};

struct TableLines {
  static constexpr int kBytes = 64;
  __m512i high0, high1, low0, low1;

  OCTAVO_INLINE explicit TableLines(const KvTable& table)
      : high0(_mm512_load_si512(table.high)),
        high1(_mm512_load_si512(table.high + 64)),
        low0(_mm512_load_si512(table.low)),
        low1(_mm512_load_si512(table.low + 64)) {}
  template <class A>
  OCTAVO_INLINE Pieces<A::kLineSteps> load(const std::byte* line) const {
    const __m512i codes = _mm512_loadu_si512(line);
    __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);  // high | sign
    return A::from_pairs(_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high));
  }
};

// gf2p8affineqb by name, since this file's flags do not include GFNI: each bit of the result is the parity of some bits
// of the byte, inverted where kInvert says so.
template <int kInvert>
OCTAVO_INLINE __m512i affine(__m512i x, uint64_t matrix) {
  __m512i result;
  asm("vgf2p8affineqb %3, %2, %1, %0"
      : "=v"(result)
      : "v"(x), "v"(_mm512_set1_epi64(static_cast<long long>(matrix))), "i"(kInvert));
  return result;
}

// The matrix whose result bit i is the parity of the input bits in the mask bit[i].
consteval uint64_t affine_matrix(const int (&bit)[8]) {
  uint64_t matrix = 0;
  for (int i = 0; i < 8; ++i) matrix |= static_cast<uint64_t>(bit[i]) << (8 * (7 - i));
  return matrix;
}

// Small floats without NaN and infinity, on a CPU with GFNI: both BF16 bytes of a normal code are affine in its bits
// (its exponent plus a bias of ones: the top bit, then its inverse a few times, then the other bits). A line that holds
// a subnormal or a zero, rare in a row scaled to its largest value, takes the tables.
template <int kMantissaBits>
struct AffineLines {
  static constexpr int kBytes = 64;
  static constexpr bool kE4m3 = kMantissaBits == 3;
  static constexpr uint64_t kHigh = kE4m3 ? affine_matrix({0x10, 0x20, 0x40, 0x40, 0x40, 0x40, 0x40, 0x80})
                                          : affine_matrix({0x08, 0x10, 0x20, 0x40, 0x40, 0x40, 0x40, 0x80});
  static constexpr int kHighInvert = kE4m3 ? 0x3C : 0x38;
  static constexpr uint64_t kLow =
      kE4m3 ? affine_matrix({0, 0, 0, 0, 0x01, 0x02, 0x04, 0x08}) : affine_matrix({0, 0, 0, 0, 0, 0x01, 0x02, 0x04});
  TableLines tables{kE4m3 ? kE4m3Table : kE5m2Table};

  template <class A>
  OCTAVO_INLINE Pieces<A::kLineSteps> load(const std::byte* line) const {
    const __m512i codes = _mm512_loadu_si512(line);
    const __mmask64 subnormal = _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(kE4m3 ? 0x78 : 0x7C));
    if (__builtin_expect(subnormal != 0, 0)) return tables.load<A>(line);
    const __m512i high = affine<kHighInvert>(codes, kHigh), low = affine<0>(codes, kLow);
    return A::from_pairs(_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high));
  }
};

struct Bf16Lines {
  static constexpr int kBytes = 128;
  template <class A>
  OCTAVO_INLINE Pieces<A::kLineSteps> load(const std::byte* line) const {
    return A::from_pairs(_mm512_loadu_si512(line), _mm512_loadu_si512(line + 64));
  }
};

struct F32Lines {
  static constexpr int kBytes = 256;
  template <class A>
  OCTAVO_INLINE Pieces<A::kLineSteps> load(const std::byte* line) const {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const F a = _mm512_loadu_ps(line), b = _mm512_loadu_ps(line + 64);
    const F c = _mm512_loadu_ps(line + 128), d = _mm512_loadu_ps(line + 192);
    return {{{_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(c, even, d)},
             {_mm512_permutex2var_ps(a, odd, b), _mm512_permutex2var_ps(c, odd, d)}}};
  }
};

// Calls body(lines) with the decoder of an element type.
template <class A, class Body>
OCTAVO_INLINE void with_lines(KvKind kind, const Body& body) {
  switch (kind) {
    case KvKind::kF32:
      if constexpr (A::kTokens == 1) return body(F32Lines{});  // BF16 pairs cannot hold FP32 elements
      return;
    case KvKind::kBf16:
      return body(Bf16Lines{});
    case KvKind::kE4m3:
      return body(TableLines(kE4m3Table));
    case KvKind::kE5m2:
      return body(TableLines(kE5m2Table));
    case KvKind::kFiniteE4m3:
      return body(AffineLines<3>{});
    case KvKind::kFiniteE5m2:
      return body(AffineLines<2>{});
    case KvKind::kInt8:
      return body(TableLines(kInt8Table));
  }
}

}  // namespace
}  // namespace octavo
