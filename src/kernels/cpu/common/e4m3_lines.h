// Tables for decoders of E4M3 lines: the upper 16 bits of the FP32 value of a code, which hold all of it.
#pragma once

#include <cstdint>

#include "numerics/minifloat.h"

namespace octavo {
namespace {

struct E4m3Tables {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
};

constexpr E4m3Tables make_e4m3_tables() {
  E4m3Tables out{};
  for (uint32_t code = 0; code < 128; ++code) {
    const uint32_t bits = float_bits(E4m3::decode(code));
    out.high[code] = static_cast<uint8_t>(bits >> 24);
    out.low[code] = static_cast<uint8_t>(bits >> 16);
  }
  return out;
}

}  // namespace
}  // namespace octavo
