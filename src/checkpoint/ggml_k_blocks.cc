// ggml's blocks of 256 values with scales of their own inside (K-quants), and its blocks of four-bit table indices,
// decoded as ggml's own dequantizers do (FP32, no contraction).
#include "checkpoint/ggml_bytes.h"
#include "checkpoint/gguf.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr int kSuper = 256, kSmall = 32;

using ggml::half;
using ggml::load;

int byte(const std::byte* bytes, int i) {
  return std::to_integer<int>(bytes[i]);
}

// The 2-bit values of a block in order: body(half of the block, bit pair, run of 16, scale) for 16 values each.
template <class Body>
void for_two_bit_runs(Body body) {
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 4; ++j)
      for (int run = 0; run < 2; ++run) body(n, j, run, 8 * n + 2 * j + run);
}

// {16 bytes of scale and minimum, 64 bytes of 2-bit values, d, dmin}
void decode_q2_k(const std::byte* block, float* out) {
  const float d = half(block + 80), dmin = half(block + 82);
  for_two_bit_runs([&](int n, int j, int run, int index) {
    const int scale = byte(block, index);
    const float step = d * static_cast<float>(scale & 15), minimum = dmin * static_cast<float>(scale >> 4);
    const std::byte* values = block + 16 + 32 * n + 16 * run;
    for (int l = 0; l < 16; ++l) *out++ = step * static_cast<float>(byte(values, l) >> (2 * j) & 3) - minimum;
  });
}

// {32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, d}
void decode_q3_k(const std::byte* block, float* out) {
  const std::byte *scales = block + 96, *high = block;
  const float d = half(block + 108);
  for_two_bit_runs([&](int n, int j, int run, int index) {
    const int low = index < 8 ? byte(scales, index) & 15 : byte(scales, index - 8) >> 4;
    const int scale = low | (byte(scales, 8 + index % 4) >> (2 * (index / 4)) & 3) << 4;
    const float step = d * static_cast<float>(scale - 32);
    const std::byte* values = block + 32 + 32 * n + 16 * run;
    for (int l = 0; l < 16; ++l) {
      const bool third = (byte(high, 16 * run + l) >> (4 * n + j) & 1) != 0;
      *out++ = step * static_cast<float>((byte(values, l) >> (2 * j) & 3) - (third ? 0 : 4));
    }
  });
}

// The 6-bit scale and minimum of sub-block j (of eight) from the 12 bytes of Q4_K and Q5_K.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum six_bits(const std::byte* s, int j) {
  if (j < 4) return {byte(s, j) & 63, byte(s, j + 4) & 63};
  return {(byte(s, j + 4) & 15) | (byte(s, j - 4) >> 6) << 4, (byte(s, j + 4) >> 4) | (byte(s, j) >> 6) << 4};
}

// {d, dmin, 12 bytes of scales, fifth bits of Q5_K, 128 bytes of nibbles}: 64 values share 32 bytes, the low nibbles
// first.
void decode_nibbles(const std::byte* block, const std::byte* fifth, const std::byte* values, float* out) {
  const float d = half(block), dmin = half(block + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleAndMinimum s = six_bits(block + 4, j);
    const float step = d * static_cast<float>(s.scale), minimum = dmin * static_cast<float>(s.minimum);
    for (int l = 0; l < 32; ++l) {
      int value = byte(values, 32 * (j / 2) + l) >> (4 * (j % 2)) & 15;
      if (fifth != nullptr) value |= (byte(fifth, l) >> j & 1) << 4;
      *out++ = step * static_cast<float>(value) - minimum;
    }
  }
}
void decode_q4_k(const std::byte* block, float* out) {
  decode_nibbles(block, nullptr, block + 16, out);
}
void decode_q5_k(const std::byte* block, float* out) {
  decode_nibbles(block, block + 16, block + 48, out);
}

// {128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, d}
void decode_q6_k(const std::byte* block, float* out) {
  const float d = half(block + 208);
  for (int n = 0; n < 2; ++n)
    for (int quarter = 0; quarter < 4; ++quarter)
      for (int l = 0; l < 32; ++l) {
        const int low = byte(block, 64 * n + 32 * (quarter % 2) + l) >> (4 * (quarter / 2)) & 15;
        const int value = low | (byte(block, 128 + 32 * n + l) >> (2 * quarter) & 3) << 4;
        const auto scale = load<int8_t>(block + 192 + 8 * n + 2 * quarter + l / 16);
        *out++ = d * static_cast<float>(scale) * static_cast<float>(value - 32);
      }
}

constexpr float kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// 16 bytes: low nibbles are the first half of 32 values, high nibbles the second.
void decode_table(const std::byte* values, float step, float* out) {
  for (int l = 0; l < 16; ++l) {
    out[l] = step * kTable[byte(values, l) & 15];
    out[l + 16] = step * kTable[byte(values, l) >> 4];
  }
}

// {d, 16 bytes}
void decode_iq4_nl(const std::byte* block, float* out) {
  decode_table(block + 2, half(block), out);
}

// {d, upper bit pairs of the scales, 4 bytes of their low nibbles, 128 bytes}
void decode_iq4_xs(const std::byte* block, float* out) {
  const float d = half(block);
  const auto upper = load<uint16_t>(block + 2);
  for (int j = 0; j < 8; ++j) {
    const int scale = (byte(block, 4 + j / 2) >> (4 * (j % 2)) & 15) | (upper >> (2 * j) & 3) << 4;
    decode_table(block + 8 + 16 * j, d * static_cast<float>(scale - 32), out + 32 * j);
  }
}

constexpr GgmlType kKTypes[] = {
    {10, "Q2_K", kSuper, 84, decode_q2_k},      {11, "Q3_K", kSuper, 110, decode_q3_k},
    {12, "Q4_K", kSuper, 144, decode_q4_k},     {13, "Q5_K", kSuper, 176, decode_q5_k},
    {14, "Q6_K", kSuper, 210, decode_q6_k},     {20, "IQ4_NL", kSmall, 18, decode_iq4_nl},
    {23, "IQ4_XS", kSuper, 136, decode_iq4_xs},
};

}  // namespace

std::span<const GgmlType> ggml_k_types() {
  return kKTypes;
}

}  // namespace octavo
