// Any small binary floating-point format (sign, exponent, mantissa), decoded and encoded exactly in integer arithmetic,
// so that no rounding mode, flush-to-zero flag or compiler option can change it.
// The formats themselves are the aliases at the end; docs/semantics.md states the rules.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace octavo {

enum class Special { kIeee, kNanOnly, kNone };  // infinities and NaN; only the all-ones NaN (E4M3FN); neither

template <int kExponentBits, int kMantissaBits, int kBias, Special kSpecial>
struct Minifloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr uint32_t kSignBit = 1u << (kBits - 1);
  static constexpr uint32_t kMagnitudeMask = kSignBit - 1;
  static constexpr uint32_t kMantissaMask = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kExponentMask = (1u << kExponentBits) - 1;
  static constexpr uint32_t kInfinity = kExponentMask << kMantissaBits;  // kIeee only
  static constexpr uint32_t kMaxCode = kSpecial == Special::kIeee      ? kInfinity - 1
                                       : kSpecial == Special::kNanOnly ? kMagnitudeMask - 1
                                                                       : kMagnitudeMask;
  static constexpr uint32_t kNan =
      kSpecial == Special::kIeee ? kInfinity | (1u << (kMantissaBits - 1)) : kMagnitudeMask;

  static constexpr bool is_nan_code(uint32_t code) {
    if constexpr (kSpecial == Special::kIeee) return (code & kMagnitudeMask) > kInfinity;
    if constexpr (kSpecial == Special::kNanOnly) return (code & kMagnitudeMask) == kMagnitudeMask;
    return false;
  }

  // The value of a code. NaN codes give a quiet NaN with the code's sign.
  static constexpr float decode(uint32_t code) {
    const uint32_t sign = (code & kSignBit) != 0 ? 0x80000000u : 0u;
    const uint32_t exponent = (code >> kMantissaBits) & kExponentMask, mantissa = code & kMantissaMask;
    if (is_nan_code(code)) return bits_float(sign | 0x7FC00000u);
    if (kSpecial == Special::kIeee && exponent == kExponentMask) return bits_float(sign | 0x7F800000u);
    if (exponent != 0) return bits_float(sign | ((exponent + 127u - kBias) << 23) | (mantissa << (23 - kMantissaBits)));
    // Subnormal: mantissa x 2^(1 - bias - mantissa bits); the product is exact. With FP32's own exponent range it would
    // be an FP32 subnormal, which a flush-to-zero flag could lose: there the bits are only moved.
    if constexpr (kBias == 127) return bits_float(sign | (mantissa << (23 - kMantissaBits)));
    const float magnitude = static_cast<float>(mantissa) * exp2_int(1 - kBias - kMantissaBits);
    return bits_float(sign | float_bits(magnitude));
  }

  static constexpr float max() { return decode(kMaxCode); }

  // Nearest code, ties to even. Beyond the largest finite value: that value when `saturate`, else infinity (kIeee) or
  // NaN (kNanOnly), decided after rounding. Infinity saturates like any large value. NaN stays NaN, with its sign.
  static constexpr uint32_t encode(float x, bool saturate = true) {
    const uint32_t bits = float_bits(x);
    const uint32_t sign = (bits >> 31) != 0 ? kSignBit : 0u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return kSpecial == Special::kNone ? sign : (sign | kNan);
    uint32_t code = 0;
    if (magnitude >= 0x7F800000u) {
      code = kMaxCode + 1;
    } else if (magnitude != 0) {
      // x = significand x 2^(exponent - 23); FP32 subnormals have exponent -126 and no hidden bit.
      const int field = static_cast<int>(magnitude >> 23);
      const int exponent = field == 0 ? -126 : field - 127;
      const uint64_t significand = (magnitude & 0x7FFFFFu) | (field == 0 ? 0u : 0x800000u);
      const int target = exponent < 1 - kBias ? 1 - kBias : exponent;  // exponent of the result, subnormals included
      const int shift = 23 - kMantissaBits + (target - exponent);      // low bits that do not fit
      uint64_t rounded = 0;
      if (shift < 26) {
        const uint64_t half = uint64_t{1} << (shift - 1), low = significand & ((uint64_t{1} << shift) - 1);
        rounded = significand >> shift;
        if (low > half || (low == half && (rounded & 1) != 0)) ++rounded;
      }
      // Adding the hidden bit's carry into the exponent field is exactly what rounding up to the next binade means.
      code = static_cast<uint32_t>(static_cast<int64_t>(rounded) +
                                   (static_cast<int64_t>(target - (1 - kBias)) << kMantissaBits));
    }
    if (code > kMaxCode) {
      if (saturate || kSpecial == Special::kNone) return sign | kMaxCode;
      return kSpecial == Special::kIeee ? (sign | kInfinity) : (sign | kNan);
    }
    return sign | code;
  }
};

using E4m3 = Minifloat<4, 3, 7, Special::kNanOnly>;  // E4M3FN: max 448, NaN 7F/FF, no infinity
using E5m2 = Minifloat<5, 2, 15, Special::kIeee>;    // max 57344
using E2m1 = Minifloat<2, 1, 1, Special::kNone>;     // OCP FP4: 0 .5 1 1.5 2 3 4 6
using Bf16 = Minifloat<8, 7, 127, Special::kIeee>;
using F16 = Minifloat<5, 10, 15, Special::kIeee>;

}  // namespace octavo
