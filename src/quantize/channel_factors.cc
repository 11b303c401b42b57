#include "quantize/channel_factors.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/quantize_rows.h"

namespace octavo {
namespace {

constexpr int64_t kSlabRows = 128;  // rounded at a time: a multiple of every block height

// difference = Q(W s) / s - W, rows of `stride` floats.
void rounding_difference(const FactorWeight& weight, std::span<const float> factors, float shared_amax, int64_t stride,
                         std::span<float> difference, ThreadPool& pool) {
  const auto cols = static_cast<int64_t>(factors.size());
  pool.parallel_items((weight.rows + kSlabRows - 1) / kSlabRows, [&](int64_t slab, int) {
    const int64_t begin = slab * kSlabRows, rows = std::min(kSlabRows, weight.rows - begin);
    const float* source = weight.values.data() + begin * cols;
    std::vector<float> scaled(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        scaled[static_cast<size_t>(r * cols + c)] = source[r * cols + c] * factors[static_cast<size_t>(c)];
    const RowsView view{ElementType::kF32, reinterpret_cast<const std::byte*>(scaled.data()), rows, cols};
    const Matrix rounded = round_matrix(view, weight.format, shared_amax);
    for (int64_t r = 0; r < rows; ++r) {
      float* out = difference.data() + (begin + r) * stride;
      dequantize_row(rounded.view(), r, out);
      for (int64_t c = 0; c < cols; ++c) out[c] = out[c] / factors[static_cast<size_t>(c)] - source[r * cols + c];
    }
  });
}

// The largest magnitude of the scaled weights of each fused group.
std::map<std::string, float> shared_amax(std::span<const FactorWeight> weights, std::span<const float> factors) {
  std::map<std::string, float> largest;
  for (const FactorWeight& weight : weights) {
    if (weight.format.granularity != Granularity::kTensor && !weight.format.outer()) continue;
    float& amax = largest[weight.fused];
    for (size_t i = 0; i < weight.values.size(); ++i)
      amax = std::max(amax, std::fabs(weight.values[i] * factors[i % factors.size()]));
  }
  return largest;
}

// magnitude^exponent, its largest and smallest each other's inverse; 1 where a channel saw nothing.
std::vector<float> powers(std::span<const float> magnitude, float exponent) {
  std::vector<float> factors(magnitude.size(), 1.0f);
  float low = INFINITY, high = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(magnitude[i] > 0)) continue;
    factors[i] = std::max(std::pow(magnitude[i], exponent), 1e-4f);
    low = std::min(low, factors[i]);
    high = std::max(high, factors[i]);
  }
  if (high == 0) return factors;
  const float middle = std::sqrt(low * high);
  for (size_t i = 0; i < factors.size(); ++i)
    if (magnitude[i] > 0) factors[i] /= middle;
  return factors;
}

}  // namespace

std::vector<float> smooth_factors(std::span<const float> activation_amax, std::span<const float> weight_amax,
                                  float strength) {
  std::vector<float> factors(activation_amax.size(), 1.0f);
  for (size_t i = 0; i < factors.size(); ++i) {
    const float factor = std::pow(activation_amax[i], strength) / std::pow(weight_amax[i], 1.0f - strength);
    if (activation_amax[i] > 0 && weight_amax[i] > 0 && std::isfinite(factor) && factor > 0) factors[i] = factor;
  }
  return factors;
}

OutputError::OutputError(std::span<const float> hessian, int64_t size, Isa isa)
    : size_(size), stride_((size + 15) / 16 * 16) {
  const TensorFormat f32 = plain_format(ElementType::kF32);
  const LinearKey key{f32, f32, size, size};
  const LinearKernel& kernel = choose_linear(key, isa);
  hessian_ = kernel.allocate(key);
  hessian_.kernel = &kernel;
  kernel.pack(hessian_, 0, {f32, size, size, reinterpret_cast<const std::byte*>(hessian.data()), nullptr});
}

double OutputError::operator()(std::span<const float> difference, int64_t rows, ThreadPool& pool) {
  if (product_.size() < static_cast<size_t>(rows * size_))
    product_ = AlignedArray<float>(static_cast<size_t>(rows * size_));
  const Activation input{.format = hessian_.key.activation,
                         .rows = rows,
                         .cols = size_,
                         .codes = reinterpret_cast<std::byte*>(const_cast<float*>(difference.data())),
                         .code_stride = stride_ * 4};
  hessian_.kernel->run({.weight = &hessian_, .input = input, .output = product_.data(), .output_stride = size_}, pool,
                       scratch_);
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float *d = difference.data() + r * stride_, *p = product_.data() + r * size_;
    for (int64_t c = 0; c < size_; ++c) sum += static_cast<double>(d[c]) * p[c];
  }
  return sum;
}

AwqFactors awq_factors(std::span<const float> hessian, std::span<const float> magnitude,
                       std::span<const FactorWeight> weights, Isa isa, ThreadPool& pool) {
  OutputError error(hessian, static_cast<int64_t>(magnitude.size()), isa);
  int64_t most_rows = 0;
  for (const FactorWeight& weight : weights) most_rows = std::max(most_rows, weight.rows);
  AlignedArray<float> difference(static_cast<size_t>(most_rows * error.stride()));  // zeros behind the columns stay
  AwqFactors best;
  for (int step = 0; step <= kAwqSteps; ++step) {
    const float exponent = static_cast<float>(step) / kAwqSteps;
    std::vector<float> factors = powers(magnitude, exponent);
    const auto amax = shared_amax(weights, factors);
    double sum = 0;
    for (const FactorWeight& weight : weights) {
      const auto shared = amax.find(weight.fused);
      rounding_difference(weight, factors, shared == amax.end() ? 0.0f : shared->second, error.stride(),
                          difference.span(), pool);
      sum += error(difference.span(), weight.rows, pool);
    }
    if (step == 0) best.plain_error = sum;
    if (step > 0 && !(sum < best.error)) continue;
    best.error = sum;
    best.exponent = exponent;
    best.factors = std::move(factors);
  }
  return best;
}

}  // namespace octavo
