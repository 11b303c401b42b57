// The simple block types of ggml that Octavo decodes (the others: ggml_k_blocks.cc), element by element as ggml's own
// dequantizers do (FP32, no contraction).
#include <algorithm>

#include "checkpoint/ggml_bytes.h"
#include "checkpoint/gguf.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr int kBlock = 32, kHalf = kBlock / 2;

using ggml::half;
using ggml::load;

int low(std::byte b) {
  return std::to_integer<int>(b & std::byte{15});
}
int high(std::byte b) {
  return std::to_integer<int>(b >> 4);
}

void decode_f32(const std::byte* block, float* out) {
  *out = load<float>(block);
}
void decode_f16(const std::byte* block, float* out) {
  *out = half(block);
}
void decode_bf16(const std::byte* block, float* out) {
  *out = Bf16::decode(load<uint16_t>(block));
}

// {d, 16 bytes}: low nibbles are the first half of the block, high nibbles the second.
void decode_q4_0(const std::byte* block, float* out) {
  const float d = half(block);
  for (int j = 0; j < kHalf; ++j) {
    out[j] = static_cast<float>(low(block[2 + j]) - 8) * d;
    out[j + kHalf] = static_cast<float>(high(block[2 + j]) - 8) * d;
  }
}

// {d, m, 16 bytes}
void decode_q4_1(const std::byte* block, float* out) {
  const float d = half(block), m = half(block + 2);
  for (int j = 0; j < kHalf; ++j) {
    out[j] = static_cast<float>(low(block[4 + j])) * d + m;
    out[j + kHalf] = static_cast<float>(high(block[4 + j])) * d + m;
  }
}

// {d, 32 fifth bits, 16 bytes}
void decode_q5_0(const std::byte* block, float* out) {
  const float d = half(block);
  const auto bits = load<uint32_t>(block + 2);
  for (int j = 0; j < kHalf; ++j) {
    const int first = static_cast<int>(bits >> j & 1u) << 4, second = static_cast<int>(bits >> (j + kHalf) & 1u) << 4;
    out[j] = static_cast<float>((low(block[6 + j]) | first) - 16) * d;
    out[j + kHalf] = static_cast<float>((high(block[6 + j]) | second) - 16) * d;
  }
}

// {d, m, 32 fifth bits, 16 bytes}
void decode_q5_1(const std::byte* block, float* out) {
  const float d = half(block), m = half(block + 2);
  const auto bits = load<uint32_t>(block + 4);
  for (int j = 0; j < kHalf; ++j) {
    const int first = static_cast<int>(bits >> j & 1u) << 4, second = static_cast<int>(bits >> (j + kHalf) & 1u) << 4;
    out[j] = static_cast<float>(low(block[8 + j]) | first) * d + m;
    out[j + kHalf] = static_cast<float>(high(block[8 + j]) | second) * d + m;
  }
}

// {d, 32 signed bytes}
void decode_q8_0(const std::byte* block, float* out) {
  const float d = half(block);
  for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(load<int8_t>(block + 2 + j)) * d;
}

void codes_q4_0(const std::byte* block, std::byte* out) {
  for (int j = 0; j < kBlock; j += 2) {  // 0..15 for -8..7
    const auto at = [&](int i) { return (i < kHalf ? low(block[2 + i]) : high(block[2 + i - kHalf])) ^ 8; };
    out[j / 2] = static_cast<std::byte>(at(j) | at(j + 1) << 4);
  }
}
void codes_q8_0(const std::byte* block, std::byte* out) {
  std::copy_n(block + 2, kBlock, out);
}

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4, decode_f32},         {1, "F16", 1, 2, decode_f16},
    {30, "BF16", 1, 2, decode_bf16},      {2, "Q4_0", kBlock, 18, decode_q4_0, ElementType::kInt4, codes_q4_0},
    {3, "Q4_1", kBlock, 20, decode_q4_1}, {6, "Q5_0", kBlock, 22, decode_q5_0},
    {7, "Q5_1", kBlock, 24, decode_q5_1}, {8, "Q8_0", kBlock, 34, decode_q8_0, ElementType::kInt8, codes_q8_0},
};

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  for (const GgmlType& type : kTypes)
    if (type.id == id) return &type;
  for (const GgmlType& type : ggml_k_types())
    if (type.id == id) return &type;
  return nullptr;
}

}  // namespace octavo
