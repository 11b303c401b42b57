// The magnitudes of the three 8-bit element types of the KV cache as BF16, which holds each of them exactly.
#pragma once

#include <cstdint>

#include "numerics/bits.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

// High and low byte of BF16(value of code 0..127); the sign is bit 7 of the code.
struct KvTable {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
};

consteval KvTable kv_table(float (*decode)(uint32_t)) {
  KvTable table{};
  for (uint32_t code = 0; code < 128; ++code) {
    const uint32_t bits = float_bits(decode(code));
    table.high[code] = static_cast<uint8_t>(bits >> 24);
    table.low[code] = static_cast<uint8_t>((bits >> 16) & 0xFF);
  }
  return table;
}

[[maybe_unused]] constexpr KvTable kE4m3Table = kv_table([](uint32_t code) { return E4m3::decode(code); });
[[maybe_unused]] constexpr KvTable kE5m2Table = kv_table([](uint32_t code) { return E5m2::decode(code); });
[[maybe_unused]] constexpr KvTable kInt8Table = kv_table([](uint32_t code) { return static_cast<float>(code); });

}  // namespace
}  // namespace octavo
