// Activation: what a fused producer (norm, SiLU-gate, attention) hands to a linear layer: codes and scales, nothing
// else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/aligned.h"
#include "formats/tensor.h"

namespace octavo {

// [rows, cols] codes. Formats: float32, bf16 (no scales); fp8_e4m3 per row, per 1x128 or with one stored scale; int8
// per row or with one stored scale. Scales are FP32 values (powers of two for E8M0).
struct Activation {
  TensorFormat format;
  int64_t rows = 0, cols = 0;
  std::byte* codes = nullptr;
  int64_t code_stride = 0;   // bytes between rows, a multiple of 64; bytes behind the last column are zero
  float* scales = nullptr;   // kRow: [rows]; kBlock: [rows][scale_stride]; kTensor: [1]
  int64_t scale_stride = 0;  // kBlock: groups per row

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

// Memory for activations, reused from step to step.
class ActivationBuffer {
 public:
  // A zeroed-tail view of this shape; `stored_scale` is used by formats with one stored scale. Invalidates earlier
  // views.
  Activation resize(const TensorFormat& format, int64_t rows, int64_t cols, float stored_scale = 1.0f);

 private:
  AlignedBytes codes_;
  AlignedArray<float> scales_;
};

}  // namespace octavo
