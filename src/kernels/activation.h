// Activation: what a fused producer (norm, SiLU-gate, attention) hands to a linear layer: codes and scales, and the
// values of outlier channels where the layer has such.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned.h"
#include "formats/tensor.h"

namespace octavo {

// [rows, cols] codes. Formats: float32, bf16 (no scales); fp8_e4m3 per row, per 1x128 or with one stored scale; int8
// per row or with one stored scale. Scales are FP32 values (powers of two for E8M0). Outlier channels are handed on in
// FP32 beside the codes; the codes are those of a row that has zeros there.
struct Activation {
  TensorFormat format;
  int64_t rows = 0, cols = 0;
  std::byte* codes = nullptr;
  int64_t code_stride = 0;   // bytes between rows, a multiple of 64; bytes behind the last column are zero
  float* scales = nullptr;   // kRow: [rows]; kBlock: [rows][scale_stride]; kTensor: [1]
  int64_t scale_stride = 0;  // kBlock: groups per row
  std::span<const int32_t> outlier_channels = {};  // ascending
  float* outliers = nullptr;                       // [rows][outlier_channels]

  std::byte* row(int64_t r) const { return codes + r * code_stride; }
  float scale(int64_t r, int64_t col) const {
    switch (format.granularity) {
      case Granularity::kNone:
        return 1.0f;
      case Granularity::kTensor:
        return scales[0];
      case Granularity::kRow:
        return scales[r];
      case Granularity::kBlock:
        return scales[r * scale_stride + col / format.block_cols];
    }
    return 1.0f;
  }
};

// Rows of plain FP32 without gaps between them.
inline Activation float_rows(float* values, int64_t rows, int64_t cols) {
  return {.format = plain_format(ElementType::kF32),
          .rows = rows,
          .cols = cols,
          .codes = reinterpret_cast<std::byte*>(values),
          .code_stride = cols * static_cast<int64_t>(sizeof(float))};
}

// Memory for activations, reused from step to step.
class ActivationBuffer {
 public:
  // A zeroed-tail view of this shape; `stored_scale` is used by formats with one stored scale. Invalidates earlier
  // views. `outlier_channels` outlives it.
  Activation resize(const TensorFormat& format, int64_t rows, int64_t cols, float stored_scale = 1.0f,
                    std::span<const int32_t> outlier_channels = {});

 private:
  AlignedBytes codes_;
  AlignedArray<float> scales_, outliers_;
};

// What a producer does with the FP32 values of row r before it makes codes of them: moves those of the outlier channels
// to `output.outliers` and leaves zeros.
void take_outliers(float* values, const Activation& output, int64_t r);

}  // namespace octavo
