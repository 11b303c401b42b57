// LinearGroup: linear layers that read the same input (q, k, v; gate, up; or one alone), packed together where their
// formats agree.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "checkpoint/checkpoint.h"
#include "kernels/linear.h"
#include "precision/plan.h"

namespace octavo {

// How a weight came from its stored form to its planned one.
struct LinearLoad {
  std::string module;
  TensorFormat stored, planned;
  std::string kernel;                // the row that runs it
  std::vector<std::string> refused;  // rows above it, and why they refused
  int64_t rows = 0, cols = 0;
  size_t bytes = 0;
  double error = 0;  // relative RMS error of a weight quantized now; 0 where it is used as stored
};

// Where a module's weight comes from: the checkpoint, or what a quantizer made of it. What the entries view outlives
// the load.
using LinearSource = FunctionRef<Result<StoredLinear>(const LinearModule& module)>;

class LinearGroup {
 public:
  // One activation that the members read, and the packed layers that read it.
  struct Input {
    TensorFormat format;
    float stored_scale = 1.0f;
    std::vector<int32_t> outlier_channels;
    std::vector<PackedLinear> layers;
    std::vector<int64_t> columns;  // first output column of each layer
  };

  // Loads the modules; their outputs stand side by side in one row of `rows()` floats.
  static Result<LinearGroup> load(const Checkpoint& checkpoint, const PrecisionPlan& plan,
                                  std::span<const LinearModule> modules, LinearSource source, Isa isa, ThreadPool& pool,
                                  std::vector<LinearLoad>& report);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  size_t bytes() const;
  const std::vector<Input>& inputs() const { return inputs_; }

  // output: [M, rows()]. `produce(activation)` fills an activation in the format it is given; it is called once per
  // distinct format.
  void run(int64_t num_rows, FunctionRef<void(const Activation&)> produce, float* output, int64_t output_stride,
           bool accumulate, ActivationBuffer& buffer, ThreadPool& pool, Scratch& scratch) const;

 private:
  int64_t rows_ = 0, cols_ = 0;
  std::vector<Input> inputs_;
};

}  // namespace octavo
