// Packed layouts: how dialects lay out weights of fewer than eight bits, and weights that are not [out, in] bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "formats/tensor.h"

namespace octavo {

// A row of packed_layout.cc. Names stand behind the module's name; an empty one: the layout has no such tensor.
struct PackedLayout {
  std::string_view name;
  std::string_view weight, scale;
  std::string_view zeros;         // zero points, packed like the weights
  std::string_view groups;        // the group of each column
  std::string_view outer;         // the FP32 scale over E4M3 scales
  std::string_view input_factor;  // what the layer's input is multiplied with, column by column
  ElementType word;               // type of the packed tensors
  bool transposed;                // scale and zero grids are [groups, rows]
  bool outer_divides;             // the outer scale is a divisor
  // Shape of the packed tensor of a [rows, cols] weight, and of the zero points of a [rows, groups] grid.
  Shape (*weight_shape)(int64_t rows, int64_t cols, int bits);
  Shape (*zeros_shape)(int64_t rows, int64_t groups, int bits);
  // [rows, cols] of a packed tensor of this shape.
  Shape (*logical_shape)(const Shape& packed, int bits);
  // Codes as Octavo keeps them: row-major, two's complement, INT4 two in a byte. nullptr: they lie there like that.
  void (*decode)(const std::byte* packed, int64_t rows, int64_t cols, int bits, std::byte* codes);
  // The stored zero point (unsigned) of a row and group.
  int (*zero)(const std::byte* packed, int64_t row, int64_t group, int64_t rows, int64_t groups, int bits);
  // The other way, into zeroed memory; nullptr: Octavo does not write this layout, or there is nothing to change.
  void (*encode)(const std::byte* codes, int64_t rows, int64_t cols, int bits, std::byte* packed) = nullptr;
  void (*store_zero)(std::byte* packed, int64_t row, int64_t group, int64_t rows, int64_t groups, int bits,
                     int zero) = nullptr;
};

extern const PackedLayout kWordsAlongRows;   // compressed-tensors pack-quantized
extern const PackedLayout kNvfp4Divisor;     // compressed-tensors nvfp4-pack-quantized
extern const PackedLayout kMxfp4Bytes;       // compressed-tensors mxfp4-pack-quantized
extern const PackedLayout kNvfp4Factor;      // ModelOpt NVFP4
extern const PackedLayout kNibblesAlongOut;  // ModelOpt INT4 AWQ
extern const PackedLayout kGptqWords;        // GPTQ, both versions
extern const PackedLayout kAwqWords;         // AWQ "gemm"
extern const PackedLayout kMxfp4Experts;     // gpt-oss: all experts of a layer in one tensor

std::span<const PackedLayout* const> packed_layouts();

}  // namespace octavo
