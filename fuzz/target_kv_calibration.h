// octavo_kv.json of a small model, as it might have been tampered with: refused, or read and used.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/kv_calibration_parser.h"

namespace octavo::fuzz {

inline void read_kv_calibration(const uint8_t* data, size_t size) {
  ModelConfig config;
  config.num_layers = 1;
  config.num_heads = config.num_kv_heads = config.head_dim = 2;
  config.hidden_size = 4;
  config.vocab_size = 8;
  const auto read = parse_kv_calibration({reinterpret_cast<const char*>(data), size}, "fuzz", config);
  if (!read) return;
  const std::string text = kv_calibration_text(*read, config);
  const auto again = parse_kv_calibration(text, "again", config);
  OCTAVO_CHECK(again && kv_calibration_text(*again, config) == text, "what is written is not read");
  for (const ElementType element : {ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8}) {
    const TensorFormat format = row_format(element);
    for (const bool key : {true, false})
      for (const float scale : read->scales(0, key, format, {})) OCTAVO_CHECK(scale > 0, "scale {}", scale);
    for (const float scale : read->channels(0, format).scales) OCTAVO_CHECK(scale > 0, "channel scale {}", scale);
  }
}

}  // namespace octavo::fuzz
