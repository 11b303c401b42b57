#include "quantize/gptq.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "formats/quantize_rows.h"
#include "quantize/scale_search.h"

namespace octavo {
namespace {

constexpr int64_t kBatch = 128;  // columns whose errors reach the columns behind them together
constexpr int64_t kRows = 64;    // weights rows that one thread takes at a time

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Some rows of a weight on their way to the grid. Columns are in the order of the steps and lie one after another.
struct Slab {
  int64_t first = 0, rows = 0;
  Eigen::MatrixXf weights;  // [rows, cols]; what is left after the errors so far
  Eigen::MatrixXf errors;   // [rows, kBatch]
  double objective = 0;
};

// Where codes and scales go, and the grid's arithmetic.
class GridWriter {
 public:
  // importance: of columns, to search scales with; empty: scales from amax.
  GridWriter(const TensorFormat& format, int64_t rows, int64_t cols, float shared_amax,
             std::span<const float> importance)
      : matrix_(make_matrix(format, rows, cols)), row_bytes_(format.element_bytes(1, cols)), importance_(importance) {
    if (format.granularity == Granularity::kTensor) matrix_.scales[0] = scale_from_amax(shared_amax, format);
    if (format.outer()) matrix_.outer = outer_from_amax(shared_amax, format);
  }

  // Columns that share scales.
  int64_t block_cols() const { return matrix_.format.grouped() ? matrix_.format.block_cols : matrix_.cols; }
  // Scales and zero points of rows [first, first + rows), whole blocks of them, in the columns that share scales from
  // `begin` on: from the values at(row - first, column).
  template <class At>
  void set_scales(int64_t first, int64_t rows, int64_t begin, At at) {
    const TensorFormat& format = matrix_.format;
    if (format.granularity == Granularity::kTensor) return;
    const int64_t step = format.grouped() ? format.block_rows : 1;
    const int64_t end = std::min(matrix_.cols, begin + block_cols());
    if (!importance_.empty() && searches_scales(format)) return set_searched(first, rows, begin, end, at);
    for (int64_t r0 = 0; r0 < rows; r0 += step) {
      float low = 0, high = 0;
      for (int64_t r = r0; r < std::min(rows, r0 + step); ++r)
        for (int64_t c = begin; c < end; ++c) {
          low = std::min(low, at(r, c));
          high = std::max(high, at(r, c));
        }
      const auto i = static_cast<size_t>(matrix_.view().grid_index(first + r0, begin));
      if (!format.zero_points) {
        matrix_.scales[i] = scale_from_amax(std::max(-low, high), format, matrix_.outer);
        continue;
      }
      const ScaleAndZero group = scale_from_range(low, high, format);
      matrix_.scales[i] = group.scale;
      matrix_.zeros[i] = group.zero;
    }
  }
  // Stores the code of a weight; returns the value that it stands for.
  float store(int64_t row, int64_t col, float weight) {
    const ElementType element = matrix_.format.element;
    std::byte* codes = matrix_.codes.data() + row * row_bytes_;
    const auto group = static_cast<size_t>(matrix_.view().grid_index(row, col)), at = static_cast<size_t>(col);
    if (matrix_.format.zero_points) {
      const float zero = matrix_.zeros[group], scale = matrix_.scales[group];
      store_integer(element, codes, at, integer_code(weight, {scale, zero}, element));
      return (load_element(element, codes, at) - zero) * scale;
    }
    const float scale = matrix_.format.outer() ? matrix_.outer.over(matrix_.scales[group]) : matrix_.scales[group];
    store_element(element, codes, at, weight / scale);
    return load_element(element, codes, at) * scale;
  }
  Matrix take() { return std::move(matrix_); }

 private:
  template <class At>
  void set_searched(int64_t first, int64_t rows, int64_t begin, int64_t end, At at) {
    std::vector<float> values(static_cast<size_t>(end - begin));
    const auto importance = importance_.subspan(static_cast<size_t>(begin), values.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = begin; c < end; ++c) values[static_cast<size_t>(c - begin)] = at(r, c);
      const ScaleAndZero group = search_scale(values, importance, matrix_.format, matrix_.outer);
      const auto i = static_cast<size_t>(matrix_.view().grid_index(first + r, begin));
      matrix_.scales[i] = group.scale;
      if (matrix_.format.zero_points) matrix_.zeros[i] = group.zero;
    }
  }

  Matrix matrix_;
  int64_t row_bytes_ = 0;
  std::span<const float> importance_;
};

}  // namespace

Result<GptqSolver> GptqSolver::create(std::span<const float> hessian, int64_t size, const GptqOptions& options) {
  GptqSolver solver;
  solver.size_ = size;
  solver.act_order_ = options.act_order;
  solver.search_scales_ = options.search_scales;
  const auto h = [&](int64_t r, int64_t c) { return hessian[static_cast<size_t>(r * size + c)]; };
  solver.order_.resize(static_cast<size_t>(size));
  std::iota(solver.order_.begin(), solver.order_.end(), int64_t{0});
  if (options.act_order)
    std::stable_sort(solver.order_.begin(), solver.order_.end(),
                     [&](int64_t a, int64_t b) { return h(a, a) > h(b, b); });
  double mean = 0;
  for (int64_t i = 0; i < size; ++i) mean += h(i, i) / static_cast<double>(size);
  if (!std::isfinite(mean))
    return fail({.what = "the calibration's Hessian is not finite",
                 .remedy = "the activations are too large for FP32 sums: check the model and the calibration text"});
  if (mean == 0) mean = 1;  // no activations at all: rounding

  // H = R R^T with R upper is the Cholesky factorization from the last column to the first; then H^-1 = R^-T R^-1 and
  // U = R^-1.
  Eigen::MatrixXd reversed(size, size);
  Eigen::LLT<Eigen::MatrixXd> factor;
  for (float damping = options.damping;; damping = std::max(damping * 10, 1e-4f)) {
    if (damping > 1e3f) return fail({.what = "the calibration's Hessian cannot be factored"});
    for (int64_t c = 0; c < size; ++c)
      for (int64_t r = 0; r < size; ++r)
        reversed(r, c) =
            h(solver.order_[static_cast<size_t>(size - 1 - r)], solver.order_[static_cast<size_t>(size - 1 - c)]);
    reversed.diagonal().array() += damping * mean;
    factor.compute(reversed);
    solver.damping_ = damping;
    if (factor.info() == Eigen::Success) break;
  }
  reversed = Eigen::MatrixXd::Identity(size, size);
  factor.matrixL().solveInPlace(reversed);
  solver.upper_ = AlignedArray<float>(static_cast<size_t>(size * size));
  solver.diagonal_ = AlignedArray<float>(static_cast<size_t>(size));
  for (int64_t r = 0; r < size; ++r) {
    for (int64_t c = r; c < size; ++c)
      solver.upper_.data()[r * size + c] = static_cast<float>(reversed(size - 1 - r, size - 1 - c));
    solver.diagonal_.data()[r] = 1.0f / solver.upper_.data()[r * size + r];
  }
  solver.importance_.resize(static_cast<size_t>(size));
  for (int64_t r = 0; r < size; ++r)
    solver.importance_[static_cast<size_t>(solver.order_[static_cast<size_t>(r)])] =
        solver.diagonal_.data()[r] * solver.diagonal_.data()[r];
  return solver;
}

namespace {

// What the steps of one slab need.
struct Steps {
  int64_t cols;
  std::span<const int64_t> order;
  const float* upper;
  const float* inverse_diagonal;
  bool scales_follow;  // scales of a block column come from the weights as they are when it is reached
};

// Steps [c0, c1) within a batch: round a column, and carry its error to the batch's later columns.
void batch_steps(const Steps& s, Slab& slab, GridWriter& grid, int64_t c0, int64_t c1) {
  const int64_t block_cols = grid.block_cols();
  for (int64_t c = c0; c < c1; ++c) {
    if (s.scales_follow && c % block_cols == 0)
      grid.set_scales(slab.first, slab.rows, c, [&](int64_t r, int64_t col) { return slab.weights(r, col); });
    const int64_t column = s.order[static_cast<size_t>(c)];
    float* error = slab.errors.data() + (c - c0) * slab.rows;
    float* weight = slab.weights.data() + c * slab.rows;
    for (int64_t r = 0; r < slab.rows; ++r) {
      error[r] = (weight[r] - grid.store(slab.first + r, column, weight[r])) * s.inverse_diagonal[c];
      slab.objective += static_cast<double>(error[r]) * error[r];
    }
    for (int64_t j = c + 1; j < c1; ++j) {
      const float u = s.upper[c * s.cols + j];
      float* later = slab.weights.data() + j * slab.rows;
      for (int64_t r = 0; r < slab.rows; ++r) later[r] -= error[r] * u;
    }
  }
}

void run_steps(const Steps& s, Slab& slab, GridWriter& grid) {
  const Eigen::Map<const RowMajor> upper(s.upper, s.cols, s.cols);
  for (int64_t c0 = 0; c0 < s.cols; c0 += kBatch) {
    const int64_t c1 = std::min(s.cols, c0 + kBatch);
    batch_steps(s, slab, grid, c0, c1);
    if (c1 < s.cols)
      slab.weights.rightCols(s.cols - c1).noalias() -=
          slab.errors.leftCols(c1 - c0) * upper.block(c0, c1, c1 - c0, s.cols - c1);
  }
}

// The rounded weights' objective: |dW R|^2 with R = U^-1.
double rounding_objective(const Steps& s, const Slab& slab, const RowsView& rows, const TensorFormat& format,
                          float shared_amax) {
  const Matrix matrix = round_matrix(rows, format, shared_amax);
  const MatrixView rounded = matrix.view();
  Eigen::MatrixXf difference(rows.rows, rows.cols);
  for (int64_t c = 0; c < rows.cols; ++c)
    for (int64_t r = 0; r < rows.rows; ++r)
      difference(r, c) = slab.weights(r, c) - rounded.at(r, s.order[static_cast<size_t>(c)]);
  const Eigen::Map<const RowMajor> upper(s.upper, s.cols, s.cols);
  upper.triangularView<Eigen::Upper>().solveInPlace<Eigen::OnTheRight>(difference);
  return difference.cast<double>().squaredNorm();
}

}  // namespace

GptqResult GptqSolver::quantize(std::span<const float> weights, int64_t rows, const TensorFormat& format,
                                float shared_amax, ThreadPool& pool) const {
  OCTAVO_CHECK(static_cast<int64_t>(weights.size()) == rows * size_ && format.scaled(), "{} weights of {}x{}",
               weights.size(), rows, size_);
  GridWriter grid(format, rows, size_, shared_amax,
                  search_scales_ ? std::span<const float>(importance_) : std::span<const float>());
  const bool follow = grid.block_cols() < size_ && !act_order_;
  const Steps steps{size_, order_, upper_.data(), diagonal_.data(), follow};
  const int64_t unit = format.granularity == Granularity::kBlock ? format.block_rows : 1;
  const int64_t slab_rows = (kRows + unit - 1) / unit * unit, slabs = (rows + slab_rows - 1) / slab_rows;
  std::vector<std::pair<double, double>> objectives(static_cast<size_t>(slabs));
  pool.parallel_items(slabs, [&](int64_t i, int) {
    Slab slab{.first = i * slab_rows, .rows = std::min(slab_rows, rows - i * slab_rows)};
    const float* source = weights.data() + slab.first * size_;
    slab.weights.resize(slab.rows, size_);
    slab.errors.resize(slab.rows, kBatch);
    for (int64_t c = 0; c < size_; ++c)
      for (int64_t r = 0; r < slab.rows; ++r) slab.weights(r, c) = source[r * size_ + order_[static_cast<size_t>(c)]];
    const RowsView view{ElementType::kF32, reinterpret_cast<const std::byte*>(source), slab.rows, size_};
    const double rounding = rounding_objective(steps, slab, view, format, shared_amax);
    if (!follow)
      for (int64_t c = 0; c < size_; c += grid.block_cols())
        grid.set_scales(slab.first, slab.rows, c, [&](int64_t r, int64_t col) { return source[r * size_ + col]; });
    run_steps(steps, slab, grid);
    objectives[static_cast<size_t>(i)] = {slab.objective, rounding};
  });
  GptqResult result;
  result.matrix = grid.take();
  for (const auto& [objective, rounding] : objectives) {
    result.objective += objective;
    result.rounding_objective += rounding;
  }
  return result;
}

}  // namespace octavo
