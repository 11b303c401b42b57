// A linear layer with random contents, and its outputs on any row of linear.inc.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "formats/tensor.h"
#include "kernels/linear.h"
#include "numerics/bits.h"

namespace octavo::testing {

// Random codes and scales of any format: every code occurs, NaN only where asked for.
inline Matrix random_matrix(const TensorFormat& format, int64_t rows, int64_t cols, Random& random) {
  Matrix out{.format = format, .rows = rows, .cols = cols, .codes = {}, .scales = {}, .zeros = {}};
  out.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows, cols)));
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto at = static_cast<size_t>(i);
    if (element_bits(format.element) == 8) {
      auto code = static_cast<uint8_t>(random.below(256));
      if (format.element == ElementType::kE4m3 && (code & 0x7F) == 0x7F) code ^= 1;
      out.codes.data()[at] = std::byte{code};
    } else if (element_bits(format.element) == 4) {
      const int64_t byte = i / cols * format.element_bytes(1, cols) + i % cols / 2;
      out.codes.data()[byte] = static_cast<std::byte>(random.below(256));
    } else {
      store_element(format.element, out.codes.data(), at, random.normal());
    }
  }
  for (int64_t i = 0; i < format.scale_rows(rows) * format.scale_cols(cols); ++i) {
    const float scale = format.outer() ? random.uniform(0.1f, 400.0f) : std::exp2(random.uniform(-9.0f, -3.0f));
    // A value that the scale's type holds.
    std::byte code[4] = {};
    if (format.scale == ElementType::kE8m0)
      out.scales.push_back(std::exp2(std::floor(std::log2(scale))));
    else
      store_element(format.scale, code, 0, scale), out.scales.push_back(load_element(format.scale, code, 0));
    const int half = 1 << (element_bits(format.element) - 1);
    if (format.zero_points)
      out.zeros.push_back(static_cast<float>(static_cast<int>(random.below(2u * half + 1)) - half));
  }
  if (format.outer()) out.outer.factor = std::exp2(random.uniform(-12.0f, -8.0f));
  return out;
}

struct LinearProblem {
  LinearKey key;
  std::vector<Matrix> slabs;  // stacked along rows, each but the last a multiple of 32 rows
  Matrix input;
  std::vector<float> bias;      // [N] or empty
  std::vector<float> previous;  // [M, N] or empty: accumulate
  std::vector<int32_t> outlier_channels;
  std::vector<float> outlier_weight, outliers;  // [N, channels], [M, channels]
};

inline LinearProblem make_problem(const TensorFormat& weight, const TensorFormat& activation, int64_t m,
                                  std::vector<int64_t> slab_rows, int64_t k, uint64_t seed) {
  Random random(seed);
  LinearProblem out{.key = {.weight = weight, .activation = activation, .cols = k}};
  for (const int64_t rows : slab_rows) {
    out.slabs.push_back(random_matrix(weight, rows, k, random));
    out.key.rows += rows;
  }
  out.input = random_matrix(activation, m, k, random);
  return out;
}

inline void add_bias_and_residual(LinearProblem& problem, uint64_t seed) {
  Random random(seed);
  for (int64_t i = 0; i < problem.key.rows; ++i) problem.bias.push_back(random.normal());
  for (int64_t i = 0; i < problem.key.rows * problem.input.rows; ++i) problem.previous.push_back(random.normal());
}

inline void add_outlier_channels(LinearProblem& problem, int count, uint64_t seed) {
  Random random(seed);
  for (int i = 0; i < count; ++i) problem.outlier_channels.push_back(i);
  for (int64_t i = 0; i < problem.key.rows * count; ++i) problem.outlier_weight.push_back(random.normal());
  for (int64_t i = 0; i < problem.input.rows * count; ++i) problem.outliers.push_back(10 * random.normal());
}

inline Activation to_activation(const Matrix& input, int64_t row0, int64_t rows, ActivationBuffer& buffer,
                                const LinearProblem* problem = nullptr) {
  const float stored = input.format.granularity == Granularity::kTensor ? input.scales[0] : 1.0f;
  const Activation out = buffer.resize(
      input.format, rows, input.cols, stored,
      problem != nullptr ? std::span<const int32_t>(problem->outlier_channels) : std::span<const int32_t>());
  const int64_t outliers = std::ssize(out.outlier_channels);
  for (int64_t i = 0; i < rows * outliers; ++i)
    out.outliers[i] = problem->outliers[static_cast<size_t>(row0 * outliers + i)];
  const int64_t bytes = input.format.element_bytes(1, input.cols), groups = input.format.scale_cols(input.cols);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out.row(r), input.codes.data() + (row0 + r) * bytes, static_cast<size_t>(bytes));
    if (input.format.granularity == Granularity::kRow || input.format.granularity == Granularity::kBlock)
      for (int64_t g = 0; g < groups; ++g)
        out.scales[r * groups + g] = input.scales[static_cast<size_t>((row0 + r) * groups + g)];
  }
  return out;
}

inline PackedLinear pack(const LinearKernel& kernel, const LinearProblem& problem) {
  EXPECT_EQ(kernel.accepts(problem.key), "") << kernel.name;
  PackedLinear packed = kernel.allocate(problem.key);
  packed.kernel = &kernel;
  int64_t row = 0;
  for (const Matrix& slab : problem.slabs) {
    kernel.pack(packed, row, slab.view());
    row += slab.rows;
  }
  if (!problem.bias.empty()) {
    packed.bias = AlignedArray<float>(problem.bias.size());
    std::copy(problem.bias.begin(), problem.bias.end(), packed.bias.begin());
  }
  if (const int64_t count = std::ssize(problem.outlier_channels); count > 0) {
    packed.allocate_outliers(count);
    row = 0;
    for (const Matrix& slab : problem.slabs) {
      packed.pack_outliers(row, std::span(problem.outlier_weight)
                                    .subspan(static_cast<size_t>(row * count), static_cast<size_t>(slab.rows * count)));
      row += slab.rows;
    }
  }
  return packed;
}

// Rows [row0, row0 + rows) of the outputs, [rows, N]. The rows of y are further apart than N, and what lies between
// them must stay as it was.
inline std::vector<float> outputs(const PackedLinear& packed, const LinearProblem& problem, ThreadPool& pool,
                                  int64_t row0, int64_t rows) {
  constexpr float kUntouched = -12345.0f;
  const int64_t n = problem.key.rows, stride = n + 5;
  std::vector<float> y(static_cast<size_t>(rows * stride), kUntouched);
  for (int64_t i = 0; !problem.previous.empty() && i < rows * n; ++i)
    y[static_cast<size_t>(i / n * stride + i % n)] = problem.previous[static_cast<size_t>(row0 * n + i)];
  Scratch scratch;
  ActivationBuffer buffer;
  packed.kernel->run({.weight = &packed,
                      .input = to_activation(problem.input, row0, rows, buffer, &problem),
                      .output = y.data(),
                      .output_stride = stride,
                      .accumulate = !problem.previous.empty()},
                     pool, scratch);
  std::vector<float> out;
  for (int64_t r = 0; r < rows; ++r) {
    out.insert(out.end(), y.begin() + r * stride, y.begin() + r * stride + n);
    for (int64_t i = n; i < stride; ++i) EXPECT_EQ(y[static_cast<size_t>(r * stride + i)], kUntouched);
  }
  return out;
}

inline std::vector<float> outputs(const LinearKernel& kernel, const LinearProblem& problem, int threads = 1) {
  ThreadPool pool(threads);
  return outputs(pack(kernel, problem), problem, pool, 0, problem.input.rows);
}

// Equal bits; any NaN equals any other.
inline void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& actual,
                             const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (is_nan(expected[i]) ? is_nan(actual[i]) : float_bits(expected[i]) == float_bits(actual[i])) continue;
    if (++wrong <= 3) ADD_FAILURE() << what << ": output " << i << " is " << actual[i] << " instead of " << expected[i];
  }
  EXPECT_EQ(wrong, 0) << what;
}

// Products of BF16 are exact in FP32, so that only sums round. Either row's result is within (number of roundings) x
// 2^-24 x (sum of |x w|) of the exact sum: at most K for the reference, and K for pairs of columns that are rounded
// twice; the scales add a handful, the same on both. K + 8 covers each with 2^-24 twice.
inline void expect_close(const LinearProblem& problem, const std::vector<float>& expected,
                         const std::vector<float>& actual) {
  const Matrix& x = problem.input;
  const std::vector<float> xs = dequantize(x.view());
  std::vector<float> ws;
  for (const Matrix& slab : problem.slabs) {
    const std::vector<float> part = dequantize(slab.view());
    ws.insert(ws.end(), part.begin(), part.end());
  }
  const int64_t n_count = problem.key.rows, k_count = x.cols;
  double worst = 0;
  for (int64_t m = 0; m < x.rows; ++m)
    for (int64_t n = 0; n < n_count; ++n) {
      double magnitude = 0;
      for (int64_t k = 0; k < k_count; ++k)
        magnitude += std::fabs(double{xs[static_cast<size_t>(m * k_count + k)]} *
                               double{ws[static_cast<size_t>(n * k_count + k)]});
      const auto i = static_cast<size_t>(m * n_count + n);
      if (!problem.bias.empty()) magnitude += std::fabs(double{problem.bias[static_cast<size_t>(n)]});
      if (!problem.previous.empty()) magnitude += std::fabs(double{problem.previous[i]});
      const double bound = magnitude * static_cast<double>(k_count + 8) * 0x1p-23;
      worst = std::max(worst, std::fabs(double{expected[i]} - double{actual[i]}) / (bound + 1e-300));
    }
  EXPECT_LE(worst, 1.0) << problem.key.weight.describe() << " x " << problem.key.activation.describe()
                        << " M=" << x.rows << " N=" << n_count << " K=" << k_count;
}

// The outputs of all rows taken in chunks of several sizes, on one to three threads, are those of one call.
inline void expect_same_in_chunks(const LinearKernel& kernel, const LinearProblem& problem) {
  const PackedLinear packed = pack(kernel, problem);
  const int64_t rows = problem.input.rows;
  ThreadPool one(1);
  const std::vector<float> whole = outputs(packed, problem, one, 0, rows);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}, rows}) {
      std::vector<float> pieces;
      for (int64_t begin = 0; begin < rows; begin += chunk) {
        const std::vector<float> piece = outputs(packed, problem, pool, begin, std::min(chunk, rows - begin));
        pieces.insert(pieces.end(), piece.begin(), piece.end());
      }
      expect_same_bits(whole, pieces, fmt::format("{}: chunks of {}, {} threads", kernel.name, chunk, threads));
    }
  }
}

inline const LinearKernel& reference_row() {
  return *linear_kernels()[0];
}

inline const LinearKernel* find_row(std::string_view name) {
  for (const LinearKernel* row : linear_kernels())
    if (row->name == name) return row;
  return nullptr;
}

}  // namespace octavo::testing
