// GPTQ (Frantar et al., 2022): weights rounded to a format's grid column by column, each column's error carried over to
// the columns that follow, so that the output error tr(dW H dW^T) becomes small.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/result.h"
#include "formats/tensor.h"
#include "parallel/thread_pool.h"

namespace octavo {

struct GptqOptions {
  float damping = 0.01f;      // of the mean of H's diagonal, added to it
  bool act_order = false;     // columns of large diagonal first; else as stored
  bool search_scales = true;  // quantize/scale_search.h, where the format has such; else from each group's amax
};

// A [rows, cols] weight on the grid, and the objective tr(dW H dW^T) with the damped H, for it and for rounding.
struct GptqResult {
  Matrix matrix;
  double objective = 0, rounding_objective = 0;
};

// H, factored once for all the weights that read the same input.
class GptqSolver {
 public:
  // hessian: [size, size], symmetric, finite. Columns without activations (a zero on the diagonal) are rounded and
  // carry nothing. Damping grows tenfold until the factorization exists; `damping_used` says what it came to.
  static Result<GptqSolver> create(std::span<const float> hessian, int64_t size, const GptqOptions& options);

  // weights: [rows, size], finite. Scales: per row from the row's amax; per tensor, and the outer scale, from
  // `shared_amax` (the largest magnitude of all the tensors that share it); per block (zero points likewise) from the
  // block's columns as they are when the first of them is reached (with act_order: as stored). Codes are those of
  // encode(w / scale). Rows do not depend on each other beyond their shared scale, nor on the threads.
  GptqResult quantize(std::span<const float> weights, int64_t rows, const TensorFormat& format, float shared_amax,
                      ThreadPool& pool) const;

  float damping_used() const { return damping_; }

 private:
  GptqSolver() = default;
  int64_t size_ = 0;
  float damping_ = 0;
  bool act_order_ = false, search_scales_ = false;
  std::vector<int64_t> order_;     // column taken at step i
  AlignedArray<float> upper_;      // U [size, size] row-major, upper: H^-1 = U^T U, in the order of the steps
  AlignedArray<float> diagonal_;   // 1 / U[i, i]
  std::vector<float> importance_;  // of a column as stored: diagonal^2 at its step
};

}  // namespace octavo
