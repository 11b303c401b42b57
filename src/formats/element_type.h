// ElementType: what one stored number is. One row each; `switch` over it only in numerics/ and formats/.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace octavo {

enum class ElementType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kE4m3,
  kE5m2,
  kE8m0,
  kE2m1,
  kInt8,
  kInt4,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kF64,
  kBool,
};

struct ElementInfo {
  ElementType type;
  std::string_view name;         // "e4m3": in flags, reports and plans
  std::string_view safetensors;  // "F8_E4M3"; empty where safetensors has no such type
  int bits;
  float max;  // largest finite value; 0 where the type never holds quantized values
};

const ElementInfo& element_info(ElementType type);
std::optional<ElementType> element_from_name(std::string_view name);
std::optional<ElementType> element_from_safetensors(std::string_view name);

inline std::string_view element_name(ElementType type) {
  return element_info(type).name;
}
inline int element_bits(ElementType type) {
  return element_info(type).bits;
}

// Element i of a packed array as FP32, exact (E2M1 and INT4: two in a byte, even element in the low nibble; INT4 as
// two's complement; INT64 and F64 rounded to FP32). Slow; the kernels have their own decoders.
float load_element(ElementType type, const void* data, size_t i);
// Stores the nearest code, saturating. Floating-point and INT8/INT4 types only.
void store_element(ElementType type, void* data, size_t i, float value);
// Stores an integer code as it is (two's complement; INT4 -8 .. 7, INT8 -128 .. 127).
void store_integer(ElementType type, void* data, size_t i, int code);
// Whether the stored code is a NaN.
bool is_nan_element(ElementType type, const void* data, size_t i);

}  // namespace octavo
