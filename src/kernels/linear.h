// Linear layer: y[m, n] (+)= sum over k of x[m, k] w[n, k], scaled, + bias[n].
//
// Order of the sums (docs/semantics.md 4), the same for every M, thread count and row of the FMA family (reference,
// avx2, avx512), which therefore agree bit for bit:
//   acc = fma(x[m, k], w[n, k], acc) over k = 0, 1, 2, ... on element values (codes without scales, less the zero
//   point); neither side grouped along K:  y = acc x (w_scale[n] x x_scale[m])        (a missing scale is 1) one or
//   both grouped along K:   per group of block_cols columns (of the finer side; it divides the other's) a chain
//                                  of its own from 0; total = fma(group, wg x xg, total) in order, where wg, xg are the
//                                  scales at these columns (1 for the ungrouped side; of an outer format the grid's,
//                                  without the outer scale); y = total x (w_whole[n] x x_whole[m]): the scale of an
//                                  ungrouped side, the outer scale of an outer format, 1 for other grouped sides;
//   then y = y + bias[n], then y = y + previous output when accumulating; each step rounded on its own;
//   then, of outlier channels, y = fma(x_out[m, i], w_out[n, i], y) over i = 0, 1, 2, ... (FP32 x, BF16 w).
// INT8 x INT8 without zero points: each sum is exact in INT32, converted to FP32, then as above.
// avx512_bf16 takes two columns per step with the instruction's own rounding; it agrees with itself for every M.
// A NaN or infinite scale, or a NaN code, makes the outputs it touches NaN.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "formats/tensor.h"
#include "kernels/activation.h"
#include "kernels/isa.h"
#include "kernels/scratch.h"
#include "parallel/thread_pool.h"

namespace octavo {

struct LinearKey {
  TensorFormat weight, activation;
  int64_t rows = 0, cols = 0;  // N, K
};

struct LinearKernel;

// Weights in a kernel's own layout.
struct PackedLinear {
  LinearKey key;
  const LinearKernel* kernel = nullptr;
  AlignedBytes panels;
  AlignedArray<float> scales;
  AlignedBytes groups;  // fast rows: what groups along K have beside their codes (cpu/common/linear_panels.h)
  AlignedArray<int32_t> corrections;  // INT8: a sum per row
  AlignedArray<float> bias;           // [N] or empty
  // BF16 weights of the input channels that the activation hands on beside its codes: [N / 32, rounded
  // up][channels][32]
  AlignedArray<uint16_t> outliers;
  int64_t num_outliers = 0;

  size_t bytes() const {
    return panels.size() + groups.size() + (scales.size() + corrections.size() + bias.size()) * 4 + outliers.size() * 2;
  }
  // Where w_out[n, i] lies in `outliers`.
  size_t outlier_index(int64_t n, int64_t i) const {
    return static_cast<size_t>((n / 32 * num_outliers + i) * 32 + n % 32);
  }
  // Room for the weights of `count` channels; then those of a slab, [rows, count], rounded to BF16.
  void allocate_outliers(int64_t count);
  void pack_outliers(int64_t row0, std::span<const float> slab);
};

struct LinearCall {
  const PackedLinear* weight = nullptr;
  Activation input;         // [M, K], in the format of weight->key.activation
  float* output = nullptr;  // [M, N] with this many floats between rows
  int64_t output_stride = 0;
  bool accumulate = false;  // add to what is there (residual)
  // Only these outputs: numbers of panels of 32, ascending. Empty: all.
  std::span<const int32_t> panels = {};
};

// A row of linear.inc.
struct LinearKernel {
  std::string_view name;  // "avx512/fma", "avx512/vnni", ...
  Isa isa;
  // Empty when the kernel can run this layer, else why not.
  std::string (*accepts)(const LinearKey& key);
  // Memory for a layer of this key, without weights.
  PackedLinear (*allocate)(const LinearKey& key);
  // Packs a slab of rows at row0. row0 is a multiple of 32, and of block_rows counted from the slab's own matrix;
  // several matrices stacked along rows (q, k, v) are slabs of one packed layer, each with its own scales. Slabs may be
  // packed from several threads. Slab format = key.weight.
  void (*pack)(PackedLinear& packed, int64_t row0, const MatrixView& slab);
  void (*run)(const LinearCall& call, ThreadPool& pool, Scratch& scratch);
};

// All rows, reference first.
std::span<const LinearKernel* const> linear_kernels();

// The row that serves a layer at this level: the highest row at or below `isa` (and available) that accepts the key.
// `why_not` collects "avx512_bf16: reason" for the rows above it that refused.
const LinearKernel& choose_linear(const LinearKey& key, Isa isa, std::vector<std::string>* why_not = nullptr);

}  // namespace octavo
