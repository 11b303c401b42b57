// TensorFormat: how numbers become a tensor: the element, and which elements share a scale. Value = element x scale;
// with zero points (element - zero) x scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "formats/element_type.h"

namespace octavo {

// Which elements of a [rows, cols] tensor share a scale. Rows are output channels of a weight, tokens of an activation,
// (token, head) pairs of a KV cache.
enum class Granularity : uint8_t {
  kNone,    // no scale: value = element
  kTensor,  // one
  kRow,     // one per row: "channel" of a weight, "token" of an activation, "token and head" of a KV cache
  kBlock,   // one per block_rows x block_cols, counted from the origin; edge blocks are smaller
};

// When an activation's or a KV cache's scale comes about.
enum class ScaleTime : uint8_t {
  kStored,   // in the checkpoint
  kDynamic,  // computed from the values when they are quantized
};

struct TensorFormat {
  ElementType element = ElementType::kF32;
  Granularity granularity = Granularity::kNone;
  int block_rows = 0, block_cols = 0;          // kBlock only; {1, 128} for activations, {128, 128} for weights
  ElementType scale = ElementType::kF32;       // kF32, kBf16, kF16; kE8m0: a power of two; kE4m3: see outer()
  ScaleTime scale_time = ScaleTime::kDynamic;  // weights: kStored
  bool zero_points = false;                    // integer elements: a zero point beside each scale

  bool operator==(const TensorFormat&) const = default;

  bool scaled() const { return granularity != Granularity::kNone; }
  // E4M3 scales are too narrow to stand alone: one FP32 scale of the whole tensor lies over them (NVFP4).
  bool outer() const { return scaled() && scale == ElementType::kE4m3; }
  // Scales change along a row.
  bool grouped() const { return granularity == Granularity::kBlock; }
  // Shape of the scale grid of a [rows, cols] tensor; {0, 0} without scales.
  int64_t scale_rows(int64_t rows) const;
  int64_t scale_cols(int64_t cols) const;
  // Bytes of a [rows, cols] tensor: elements (rows padded to whole bytes), and its scales, zero points (as wide as the
  // elements) and outer scale.
  int64_t element_bytes(int64_t rows, int64_t cols) const;
  int64_t scale_bytes(int64_t rows, int64_t cols) const;

  // "bf16", "fp8_e4m3 per row", "fp8_e4m3 per 128x128, e8m0 scales", "fp8_e4m3 per tensor, stored scale".
  std::string describe() const;
};

// The formats that appear by name elsewhere.
TensorFormat plain_format(ElementType element);        // no scales
TensorFormat row_format(ElementType element);          // weight per channel, activation per token
TensorFormat tensor_wide_format(ElementType element);  // one scale
TensorFormat block_format(ElementType element, int rows, int cols, ElementType scale = ElementType::kF32);
TensorFormat group_format(ElementType element, int cols, ElementType scale, bool zero_points = false);  // {1, cols}

}  // namespace octavo
