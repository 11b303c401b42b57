// The Hessian of a linear layer's squared output error: H = sum over tokens of x x^T, x the layer's input. Every token
// counts, the first ones too: many layers lean on what becomes of them (attention sinks). But where their activations
// are huge, they would decide H alone: a row that is longer than most counts as if it were less so.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "base/aligned.h"
#include "kernels/activation.h"
#include "kernels/isa.h"
#include "kernels/linear.h"
#include "kernels/scratch.h"
#include "parallel/thread_pool.h"

namespace octavo {

// Memory that the Hessians of a model share, reused from sample to sample.
class HessianWork {
  friend class Hessian;
  AlignedBytes transposed_, block_;
  std::map<std::pair<int64_t, int64_t>, PackedLinear> packed_;  // blocks as weights, by columns and tokens
  Scratch scratch_;
};

class Hessian {
 public:
  // size: columns of the layer's weight. `work` outlives it.
  Hessian(int64_t size, Isa isa, HessianWork& work);

  // What a Hessian of this size holds.
  static int64_t bytes(int64_t size) { return size * size * static_cast<int64_t>(sizeof(float)); }

  // Rows count up to a squared length of this many times the median of their sample's.
  static constexpr double kLongestRow = 4;

  // Adds the rows of a sample, plain BF16 or FP32 activations. Products run through the linear kernels: a chain over
  // the sample's tokens, then added to the sum, FP32; the same for any number of threads.
  void add(const Activation& rows, ThreadPool& pool);

  // [size, size], symmetric.
  std::span<const float> matrix();
  // As of inputs that have zeros in these channels.
  void clear(std::span<const int32_t> channels);
  int64_t size() const { return size_; }
  int64_t tokens() const { return tokens_; }

 private:
  int64_t size_;
  Isa isa_;
  HessianWork* work_;
  int64_t tokens_ = 0;
  bool mirrored_ = false;
  AlignedArray<float> values_;  // rows by columns; the lower triangle of blocks is filled
};

}  // namespace octavo
