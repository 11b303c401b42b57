// Reinterpreting FP32 values as bits, and 2^n without the library.
#pragma once

#include <bit>
#include <cstdint>

namespace octavo {

constexpr uint32_t float_bits(float x) {
  return std::bit_cast<uint32_t>(x);
}
constexpr float bits_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
constexpr bool is_nan(float x) {
  return (float_bits(x) & 0x7FFFFFFFu) > 0x7F800000u;
}
constexpr bool is_finite(float x) {
  return (float_bits(x) & 0x7F800000u) != 0x7F800000u;
}

// 2^n, exact, for -149 <= n <= 127.
constexpr float exp2_int(int n) {
  return n >= -126 ? bits_float(static_cast<uint32_t>(n + 127) << 23) : bits_float(1u << (n + 149));
}

}  // namespace octavo
