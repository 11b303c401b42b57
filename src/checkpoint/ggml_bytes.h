// Numbers out of the bytes of GGML blocks, little-endian and unaligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numerics/minifloat.h"

namespace octavo::ggml {

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

inline float half(const std::byte* bytes) {
  return F16::decode(load<uint16_t>(bytes));
}

}  // namespace octavo::ggml
