// Factors per input channel of linear layers that read the same rows, from what calibration saw of them: the layers'
// columns are multiplied with them, the rows divided (quantize/weight_transform.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/tensor_format.h"
#include "kernels/linear.h"
#include "parallel/thread_pool.h"

namespace octavo {

// SmoothQuant (Xiao et al., 2023): s = activation_amax^strength / weight_amax^(1 - strength). 1 where a channel's
// activations or weights are all zero.
std::vector<float> smooth_factors(std::span<const float> activation_amax, std::span<const float> weight_amax,
                                  float strength);

// A weight [rows, H's size] that reads the channels. Those with the same `fused` share a scale where the format has one
// per tensor, or an outer scale.
struct FactorWeight {
  std::span<const float> values;
  int64_t rows;
  TensorFormat format;
  std::string fused;
};

// AWQ (Lin et al., 2023): s = magnitude^a, scaled so that the largest and the smallest are each other's inverse, with
// the a of kAwqSteps + 1 steps from 0 to 1 that makes the rounded weights' output error smallest: the sum over the
// weights of tr(dW H dW^T), dW = Q(W s) / s - W. a = 0 leaves everything as it was.
inline constexpr int kAwqSteps = 20;
struct AwqFactors {
  std::vector<float> factors;
  float exponent = 0;
  double error = 0, plain_error = 0;  // with these factors, and with a = 0
};
AwqFactors awq_factors(std::span<const float> hessian, std::span<const float> magnitude,
                       std::span<const FactorWeight> weights, Isa isa, ThreadPool& pool);

// tr(D H D^T) for many D [rows, size].
class OutputError {
 public:
  // hessian: [size, size], symmetric.
  OutputError(std::span<const float> hessian, int64_t size, Isa isa);
  // difference: rows of `stride()` floats. The sum is FP64, in the order of the rows.
  double operator()(std::span<const float> difference, int64_t rows, ThreadPool& pool);
  int64_t stride() const { return stride_; }

 private:
  int64_t size_, stride_;
  PackedLinear hessian_;
  AlignedArray<float> product_;
  Scratch scratch_;
};

}  // namespace octavo
