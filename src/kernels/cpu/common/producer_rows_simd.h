// The producers' rows, written once for every vector width (simd.h). Orders of sums and the steps of each encoder are
// those of kernels/producers.h and docs/semantics.md; integer maxima and adders that round make them independent of
// the floating-point environment's flags.
#pragma once

#include "formats/paged_kv.h"
#include "formats/tensor.h"
#include "kernels/cpu/common/producer_rows.h"
#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

// Nearest code of a small float, ties to even, saturating, NaN kept: adding 2^(e + 23 - mantissa bits) makes the FP32
// adder round x of exponent e to the format's quantum, subnormals included.
template <int kMantissaBits, int kMinExponent, int kNanCode>
OCTAVO_INLINE I encode_minifloat(F x, float largest) {
  constexpr int kShift = 23 - kMantissaBits, kLowest = (127 + kMinExponent) << 23, kRaise = kShift << 23;
  const I bits = as_bits(x);
  const F magnitude = min(splat(largest), as_floats(bits & splat_int(0x7FFFFFFF)));
  const I magic = max(as_bits(magnitude) & splat_int(0x7F800000), splat_int(kLowest)) + splat_int(kRaise);
  const I quanta = as_bits(magnitude + as_floats(magic)) - magic;
  const I code = quanta + (shift_right<kShift>(magic) - splat_int((kLowest + kRaise) >> kShift));
  const I sign = shift_left<7>(shift_right<31>(bits));
  return select(is_nan_lane(x), splat_int(kNanCode), code) | sign;
}

OCTAVO_INLINE I encode_bf16(F x) {
  const I bits = as_bits(x), magnitude = bits & splat_int(0x7FFFFFFF);
  const I odd = shift_right<16>(magnitude) & splat_int(1);
  const I rounded = min(shift_right<16>(magnitude + splat_int(0x7FFF) + odd), splat_int(0x7F7F));
  return select(is_nan_lane(x), splat_int(0x7FC0), rounded) | shift_left<15>(shift_right<31>(bits));
}

// Two's complement in the low byte; 0 for NaN.
OCTAVO_INLINE I encode_int8(F x) {
  const F clamped = max(splat(-127.0f), min(splat(127.0f), x));
  return select(is_nan_lane(x), splat_int(0), to_int(clamped));
}

OCTAVO_INLINE I encode_kv_int8(F x) {
  const I value = encode_int8(x);
  return select(is_negative(value), (splat_int(0) - value) | splat_int(0x80), value);
}

template <CodeKind kKind>
OCTAVO_INLINE I encode(F x) {
  if constexpr (kKind == CodeKind::kBf16) return encode_bf16(x);
  if constexpr (kKind == CodeKind::kE4m3) return encode_minifloat<3, -6, 0x7F>(x, 448.0f);
  if constexpr (kKind == CodeKind::kE5m2) return encode_minifloat<2, -14, 0x7E>(x, 57344.0f);
  if constexpr (kKind == CodeKind::kInt8) return encode_int8(x);
  if constexpr (kKind == CodeKind::kKvInt8) return encode_kv_int8(x);
  return as_bits(x);
}

constexpr int code_bytes(CodeKind kind) {
  return kind == CodeKind::kF32 ? 4 : kind == CodeKind::kBf16 ? 2 : 1;
}

template <CodeKind kKind>
OCTAVO_INLINE void store_codes(char* p, I codes) {
  if constexpr (kKind == CodeKind::kF32) {
    store(reinterpret_cast<float*>(p), as_floats(codes));
  } else if constexpr (kKind == CodeKind::kBf16) {
    store_halves(p, codes);
  } else {
    store_bytes(p, codes);
  }
}

OCTAVO_INLINE float fast_sqrt(float x) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

// Values of a row, sixteen at a time: source(c, n) gives columns c .. c + n - 1 and zeros in the lanes behind them.
struct PlainSource {
  const float* x;
  OCTAVO_INLINE F operator()(int64_t c) const { return load(x + c); }
  OCTAVO_INLINE F operator()(int64_t c, int64_t n) const { return load_first(x + c, n); }
};
struct NormSource {
  const float *x, *weight;
  float r;
  OCTAVO_INLINE F operator()(int64_t c) const { return (load(x + c) * splat(r)) * load(weight + c); }
  OCTAVO_INLINE F operator()(int64_t c, int64_t n) const {
    return keep(first_lanes(n), (load_first(x + c, n) * splat(r)) * load_first(weight + c, n));
  }
};

// The bits of the largest magnitude in columns [begin, end): above those of every finite number where one is not.
template <class Source>
OCTAVO_INLINE uint32_t largest_bits(const Source& source, int64_t begin, int64_t end) {
  I most = splat_int(0);
  int64_t c = begin;
  for (; c + 16 <= end; c += 16) most = max(most, as_bits(source(c)) & splat_int(0x7FFFFFFF));
  if (c < end) most = max(most, as_bits(source(c, end - c)) & splat_int(0x7FFFFFFF));
  return max_lanes(most);
}

OCTAVO_INLINE float bits_to_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

template <CodeKind kKind>
OCTAVO_INLINE I encode_scaled(F y, F inverse) {
  return encode<kKind>(code_bytes(kKind) == 1 ? y * inverse : y);
}

// Codes of columns [begin, end), at codes + their index; up to 15 codes behind the last are written as 0.
template <CodeKind kKind, class Source>
OCTAVO_INLINE void encode_columns(const Source& source, int64_t begin, int64_t end, float scale, char* codes) {
  constexpr int64_t kBytes = code_bytes(kKind);
  int64_t c = begin;
  if (kBytes == 1 && scale != scale) {
    for (; c < end; c += 16) store_codes<kKind>(codes + c, splat_int(0));
    return;
  }
  const F inverse = splat(1.0f / scale);
  if constexpr (kBytes == 1) {
    const I byte = splat_int(0xFF);
    for (; c + 64 <= end; c += 64)
      store_bytes(codes + c, encode_scaled<kKind>(source(c), inverse) & byte,
                  encode_scaled<kKind>(source(c + 16), inverse) & byte,
                  encode_scaled<kKind>(source(c + 32), inverse) & byte, encode_scaled<kKind>(source(c + 48), inverse));
  }
  for (; c + 16 <= end; c += 16) store_codes<kKind>(codes + c * kBytes, encode_scaled<kKind>(source(c), inverse));
  if (c < end) store_codes<kKind>(codes + c * kBytes, encode_scaled<kKind>(source(c, end - c), inverse));
}

template <CodeKind kKind, class Source>
void quantize_as(const Source& source, const RowTarget& out) {
  auto* codes = static_cast<char*>(out.codes);
  if (out.format == nullptr) return encode_columns<kKind>(source, 0, out.cols, out.scales[0], codes);
  for (int64_t begin = 0, g = 0; begin < out.cols; begin += out.group, ++g) {
    const int64_t end = begin + out.group < out.cols ? begin + out.group : out.cols;
    out.scales[g] = scale_from_amax(bits_to_float(largest_bits(source, begin, end)), *out.format);
    encode_columns<kKind>(source, begin, end, out.scales[g], codes);
  }
}

template <class Source>
void quantize_row(const Source& source, const RowTarget& out) {
  switch (out.kind) {
    case CodeKind::kF32:
      return encode_columns<CodeKind::kF32>(source, 0, out.cols, 1.0f, static_cast<char*>(out.codes));
    case CodeKind::kBf16:
      return encode_columns<CodeKind::kBf16>(source, 0, out.cols, 1.0f, static_cast<char*>(out.codes));
    case CodeKind::kE4m3:
      return quantize_as<CodeKind::kE4m3>(source, out);
    case CodeKind::kE5m2:
      return quantize_as<CodeKind::kE5m2>(source, out);
    case CodeKind::kInt8:
      return quantize_as<CodeKind::kInt8>(source, out);
    case CodeKind::kKvInt8:
      return quantize_as<CodeKind::kKvInt8>(source, out);
  }
}

// 1 / sqrt(mean of squares + eps)
OCTAVO_INLINE float inverse_rms(const float* x, int64_t n, float eps) {
  F squares = zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    const F v = load_first(x + i, n - i);
    squares = fma(v, v, squares);
  }
  return 1.0f / fast_sqrt(sum_lanes(squares) / static_cast<float>(n) + eps);
}

void rms_norm(const float* x, const float* weight, float eps, const RowTarget& out) {
  quantize_row(NormSource{x, weight, inverse_rms(x, out.cols, eps)}, out);
}

void quantize(const float* x, const RowTarget& out) {
  quantize_row(PlainSource{x}, out);
}

// silu of kernels/math.h
OCTAVO_INLINE F silu_lanes(F g) {
  F t = negate(g) * splat(kLog2E);
  t = min(splat(127.0f), max(splat(kExp2Min), t));
  return g / (splat(1.0f) + exp2_lanes(t));
}

// Sixteen floats of one vector, for what simd.h does not have: moving lanes.
typedef float Lanes __attribute__((vector_size(64)));
typedef int LaneIndex __attribute__((vector_size(64)));

// A step of hadamard_blocks() with pairs inside of sixteen values.
template <int kHalf>
OCTAVO_INLINE void hadamard_lanes(float* x) {
  constexpr auto pair = [](int lane) { return lane ^ kHalf; };
  constexpr auto kept = [](int lane) { return (lane & kHalf) == 0 ? -1 : 0; };
  constexpr LaneIndex kPairs = {pair(0), pair(1), pair(2),  pair(3),  pair(4),  pair(5),  pair(6),  pair(7),
                                pair(8), pair(9), pair(10), pair(11), pair(12), pair(13), pair(14), pair(15)};
  constexpr LaneIndex kFirst = {kept(0), kept(1), kept(2),  kept(3),  kept(4),  kept(5),  kept(6),  kept(7),
                                kept(8), kept(9), kept(10), kept(11), kept(12), kept(13), kept(14), kept(15)};
  Lanes own;
  __builtin_memcpy(&own, x, sizeof own);
  const Lanes other = __builtin_shuffle(own, kPairs);
  const Lanes result = kFirst ? own + other : other - own;
  __builtin_memcpy(x, &result, sizeof result);
}

// hadamard_blocks() of kernels/hadamard.h: the same steps.
void hadamard(float* x, int64_t n, int64_t block, float scale) {
  int64_t half = 1;
  if (block >= 16) {
    for (int64_t i = 0; i < n; i += 16) {
      hadamard_lanes<1>(x + i);
      hadamard_lanes<2>(x + i);
      hadamard_lanes<4>(x + i);
      hadamard_lanes<8>(x + i);
    }
    for (half = 16; half < block; half *= 2)
      for (int64_t begin = 0; begin < n; begin += 2 * half)
        for (int64_t i = begin; i < begin + half; i += 16) {
          const F a = load(x + i), b = load(x + i + half);
          store(x + i, a + b);
          store(x + i + half, a - b);
        }
  } else {
    for (; half < block; half *= 2)
      for (int64_t i = 0; i < n; ++i) {
        if ((i & half) != 0) continue;
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
  }
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

void silu_gate(const float* gate, const float* up, float* values, int64_t hadamard_block, float scale,
               const RowTarget& out) {
  int64_t c = 0;
  for (; c + 16 <= out.cols; c += 16) store(values + c, silu_lanes(load(gate + c)) * load(up + c));
  if (const int64_t n = out.cols - c; n > 0)
    store_first(values + c, silu_lanes(load_first(gate + c, n)) * load_first(up + c, n), n);
  if (hadamard_block > 0) hadamard(values, out.cols, hadamard_block, scale);
  quantize_row(PlainSource{values}, out);
}

// Pairs (x[i], x[half + i]) of n <= 16 dimensions.
OCTAVO_INLINE void rotate(float* x, const float* cos_sin, int half, int i, int n) {
  const F cosine = load_first(cos_sin + i, n), sine = load_first(cos_sin + half + i, n);
  const F a = load_first(x + i, n), b = load_first(x + half + i, n);
  store_first(x + i, fma(a, cosine, negate(b * sine)), n);
  store_first(x + half + i, fma(b, cosine, a * sine), n);
}

void rope(float* heads, int num_heads, int head_dim, const float* norm, float eps, const float* cos_sin) {
  const int half = head_dim / 2;
  for (int h = 0; h < num_heads; ++h) {
    float* x = heads + static_cast<int64_t>(h) * head_dim;
    if (norm != nullptr) {
      const NormSource source{x, norm, inverse_rms(x, head_dim, eps)};
      for (int c = 0; c < head_dim; c += 16) {
        const int n = head_dim - c < 16 ? head_dim - c : 16;
        store_first(x + c, source(c, n), n);
      }
    }
    for (int i = 0; i < half; i += 16) rotate(x, cos_sin, half, i, half - i < 16 ? half - i : 16);
  }
}

// ---- K and V into their page (formats/paged_kv.h) ----

struct Offsets {
  uint8_t at[2][kPageTokens];
};
constexpr Offsets panel_offsets(int code_bytes) {
  Offsets offsets{};
  for (int column = 0; column < 2; ++column)
    for (int row = 0; row < kPageTokens; ++row)
      offsets.at[column][row] = static_cast<uint8_t>(code_bytes == 1 ? panel_offset_8bit(row, column)
                                                                     : code_bytes * panel_index_wide(row, column));
  return offsets;
}

// Calls part(first dimension, count, codes) for up to 64 dimensions at a time.
template <CodeKind kKind, class Part>
OCTAVO_INLINE void encode_kv(const float* x, const KvTarget& out, const Part& part) {
  const PlainSource source{x};
  float scale = 1.0f;
  if (out.format != nullptr)
    scale = out.given != nullptr ? *out.given
                                 : scale_from_amax(bits_to_float(largest_bits(source, 0, out.head_dim)), *out.format);
  *out.scale = scale;
  alignas(64) char codes[64 * 4];
  for (int d = 0; d < out.head_dim; d += 64) {
    const int n = out.head_dim - d < 64 ? out.head_dim - d : 64;
    encode_columns<kKind>(PlainSource{x + d}, 0, n, scale, codes);
    part(d, n, codes);
  }
}

template <CodeKind kKind>
void store_k_as(const float* k, const KvTarget& out) {
  constexpr int kBytes = code_bytes(kKind);
  static constexpr Offsets kOffsets = panel_offsets(kBytes);
  std::byte* column = out.part + kOffsets.at[0][out.slot];
  encode_kv<kKind>(k, out, [column](int d, int n, const char* codes) {
    for (int i = 0; i < n / 2; ++i)
      __builtin_memcpy(column + static_cast<int64_t>(d / 2 + i) * (64 * kBytes), codes + 2 * i * kBytes, 2 * kBytes);
  });
}

template <CodeKind kKind>
void store_v_as(const float* v, const KvTarget& out) {
  constexpr int kBytes = code_bytes(kKind);
  static constexpr Offsets kOffsets = panel_offsets(kBytes);
  const int column = out.slot % 2;
  std::byte* lines = out.part + static_cast<int64_t>(out.slot / 2) * ((out.head_dim + 31) / 32) * (64 * kBytes);
  encode_kv<kKind>(v, out, [=](int d, int n, const char* codes) {
    int i = 0;
    if constexpr (kBytes == 1)
      for (; i + 32 <= n; i += 32) store_panel_column(lines + (d + i) / 32 * 64, codes + i, column);
    for (; i < n; ++i)
      __builtin_memcpy(lines + (d + i) / 32 * (64 * kBytes) + kOffsets.at[column][i % 32], codes + i * kBytes, kBytes);
  });
}

#define OCTAVO_STORE_AS(function)                 \
  switch (out.kind) {                             \
    case CodeKind::kF32:                          \
      return function<CodeKind::kF32>(x, out);    \
    case CodeKind::kBf16:                         \
      return function<CodeKind::kBf16>(x, out);   \
    case CodeKind::kE4m3:                         \
      return function<CodeKind::kE4m3>(x, out);   \
    case CodeKind::kE5m2:                         \
      return function<CodeKind::kE5m2>(x, out);   \
    case CodeKind::kInt8:                         \
    case CodeKind::kKvInt8:                       \
      return function<CodeKind::kKvInt8>(x, out); \
  }
void store_k(const float* x, const KvTarget& out) {
  OCTAVO_STORE_AS(store_k_as)
}
void store_v(const float* x, const KvTarget& out) {
  OCTAVO_STORE_AS(store_v_as)
}
#undef OCTAVO_STORE_AS

}  // namespace
}  // namespace octavo
