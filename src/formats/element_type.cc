#include "formats/element_type.h"

#include <cstring>

#include "base/check.h"
#include "numerics/e8m0.h"
#include "numerics/integer.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr ElementInfo kElements[] = {
    {ElementType::kF32, "float32", "F32", 32, 3.4028235e38f},
    {ElementType::kF16, "float16", "F16", 16, 65504.0f},
    {ElementType::kBf16, "bf16", "BF16", 16, 3.3895314e38f},
    {ElementType::kE4m3, "fp8_e4m3", "F8_E4M3", 8, 448.0f},
    {ElementType::kE5m2, "fp8_e5m2", "F8_E5M2", 8, 57344.0f},
    {ElementType::kE8m0, "e8m0", "F8_E8M0", 8, 0},
    {ElementType::kE2m1, "fp4_e2m1", "F4", 4, 6.0f},
    {ElementType::kInt8, "int8", "I8", 8, 127.0f},
    {ElementType::kInt4, "int4", "", 4, 7.0f},
    {ElementType::kUint8, "uint8", "U8", 8, 0},
    {ElementType::kInt16, "int16", "I16", 16, 0},
    {ElementType::kUint16, "uint16", "U16", 16, 0},
    {ElementType::kInt32, "int32", "I32", 32, 0},
    {ElementType::kUint32, "uint32", "U32", 32, 0},
    {ElementType::kInt64, "int64", "I64", 64, 0},
    {ElementType::kUint64, "uint64", "U64", 64, 0},
    {ElementType::kF64, "float64", "F64", 64, 0},
    {ElementType::kBool, "bool", "BOOL", 8, 0},
};

template <class T>
T load(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(void* data, size_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

uint32_t load_nibble(const void* data, size_t i) {
  const uint8_t byte = load<uint8_t>(data, i / 2);
  return i % 2 == 0 ? byte & 15u : byte >> 4;
}

void store_nibble(void* data, size_t i, uint32_t nibble) {
  const uint8_t byte = load<uint8_t>(data, i / 2);
  store<uint8_t>(data, i / 2,
                 static_cast<uint8_t>(i % 2 == 0 ? (byte & 0xF0u) | (nibble & 15u) : (byte & 0x0Fu) | (nibble << 4)));
}

}  // namespace

const ElementInfo& element_info(ElementType type) {
  const auto index = static_cast<size_t>(type);
  OCTAVO_CHECK(index < std::size(kElements) && kElements[index].type == type, "element type {}", index);
  return kElements[index];
}

std::optional<ElementType> element_from_name(std::string_view name) {
  for (const ElementInfo& info : kElements)
    if (info.name == name) return info.type;
  return std::nullopt;
}

std::optional<ElementType> element_from_safetensors(std::string_view name) {
  for (const ElementInfo& info : kElements)
    if (!name.empty() && info.safetensors == name) return info.type;
  return std::nullopt;
}

float load_element(ElementType type, const void* data, size_t i) {
  switch (type) {
    case ElementType::kF32:
      return load<float>(data, i);
    case ElementType::kF16:
      return F16::decode(load<uint16_t>(data, i));
    case ElementType::kBf16:
      return Bf16::decode(load<uint16_t>(data, i));
    case ElementType::kE4m3:
      return E4m3::decode(load<uint8_t>(data, i));
    case ElementType::kE5m2:
      return E5m2::decode(load<uint8_t>(data, i));
    case ElementType::kE8m0:
      return E8m0::decode(load<uint8_t>(data, i));
    case ElementType::kE2m1:
      return E2m1::decode(load_nibble(data, i));
    case ElementType::kInt8:
      return static_cast<float>(load<int8_t>(data, i));
    case ElementType::kInt4:
      return static_cast<float>(static_cast<int>(load_nibble(data, i) ^ 8u) - 8);
    case ElementType::kBool:
    case ElementType::kUint8:
      return static_cast<float>(load<uint8_t>(data, i));
    case ElementType::kInt16:
      return static_cast<float>(load<int16_t>(data, i));
    case ElementType::kUint16:
      return static_cast<float>(load<uint16_t>(data, i));
    case ElementType::kInt32:
      return static_cast<float>(load<int32_t>(data, i));
    case ElementType::kUint32:
      return static_cast<float>(load<uint32_t>(data, i));
    case ElementType::kInt64:
      return static_cast<float>(load<int64_t>(data, i));
    case ElementType::kUint64:
      return static_cast<float>(load<uint64_t>(data, i));
    case ElementType::kF64:
      return static_cast<float>(load<double>(data, i));
  }
  OCTAVO_CHECK(false, "element type {}", static_cast<int>(type));
}

void store_element(ElementType type, void* data, size_t i, float value) {
  switch (type) {
    case ElementType::kF32:
      return store(data, i, value);
    case ElementType::kF16:
      return store(data, i, static_cast<uint16_t>(F16::encode(value)));
    case ElementType::kBf16:
      return store(data, i, static_cast<uint16_t>(Bf16::encode(value)));
    case ElementType::kE4m3:
      return store(data, i, static_cast<uint8_t>(E4m3::encode(value)));
    case ElementType::kE5m2:
      return store(data, i, static_cast<uint8_t>(E5m2::encode(value)));
    case ElementType::kE2m1:
      return store_nibble(data, i, E2m1::encode(value));
    case ElementType::kInt8:
      return store(data, i, Int8::encode(value));
    case ElementType::kInt4:
      return store_nibble(data, i, static_cast<uint32_t>(Int4::encode(value)) & 15u);
    default:
      break;
  }
  OCTAVO_CHECK(false, "{} does not hold quantized values", element_name(type));
}

void store_integer(ElementType type, void* data, size_t i, int code) {
  if (type == ElementType::kInt4) return store_nibble(data, i, static_cast<uint32_t>(code) & 15u);
  OCTAVO_CHECK(type == ElementType::kInt8, "{} is not an integer element", element_name(type));
  store(data, i, static_cast<int8_t>(code));
}

bool is_nan_element(ElementType type, const void* data, size_t i) {
  return is_nan(load_element(type, data, i));
}

}  // namespace octavo
