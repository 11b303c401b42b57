// E8M0 (UE8M0): a power of two from 2^-127 to 2^127, and NaN (FF). No zero, no sign. Only ever a scale.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace octavo {

struct E8m0 {
  static constexpr uint8_t kNan = 0xFF;

  static constexpr float decode(uint8_t code) {
    return code == kNan ? bits_float(0x7FC00000u) : exp2_int(static_cast<int>(code) - 127);
  }

  // The smallest power of two that is >= x, for finite x > 0 (clamped to 2^-127 .. 2^127); NaN for anything else.
  static constexpr uint8_t encode_round_up(float x) {
    const uint32_t bits = float_bits(x);
    if (bits == 0 || bits >= 0x7F800000u) return kNan;
    if ((bits >> 23) == 0) return bits <= 0x00400000u ? 0 : 1;  // FP32 subnormals: 2^-127 is 0x00400000
    const uint32_t up = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
    return static_cast<uint8_t>(up > 254 ? 254 : up);
  }
};

}  // namespace octavo
