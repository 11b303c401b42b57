// GPTQ against what defines it: the objective, plain rounding where nothing can be carried over, the grid of the
// format.
#include "quantize/gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "formats/quantize_rows.h"

namespace octavo {
namespace {

struct Problem {
  int64_t rows, cols;
  std::vector<float> weights, hessian;
};

// Inputs that are mixtures of a few hidden causes, as real activations are: H has large off-diagonal entries.
Problem correlated(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Problem p{rows, cols, {}, std::vector<float>(static_cast<size_t>(cols * cols))};
  for (int64_t i = 0; i < rows * cols; ++i) p.weights.push_back(0.05f * random.normal());
  const int64_t causes = cols / 4, tokens = 4 * cols;
  std::vector<float> mixing(static_cast<size_t>(causes * cols)), x(static_cast<size_t>(cols));
  for (float& m : mixing) m = random.normal();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < cols; ++c) x[static_cast<size_t>(c)] = 0.2f * random.normal();
    for (int64_t k = 0; k < causes; ++k) {
      const float strength = random.normal();
      for (int64_t c = 0; c < cols; ++c)
        x[static_cast<size_t>(c)] += strength * mixing[static_cast<size_t>(k * cols + c)];
    }
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t j = 0; j < cols; ++j)
        p.hessian[static_cast<size_t>(i * cols + j)] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)];
  }
  return p;
}

float amax(const Problem& p) {
  float most = 0;
  for (const float w : p.weights) most = std::max(most, std::fabs(w));
  return most;
}

// tr(dW H dW^T) by its definition.
double objective(const Problem& p, const Matrix& matrix, double damping) {
  double mean = 0, total = 0;
  for (int64_t i = 0; i < p.cols; ++i) mean += p.hessian[static_cast<size_t>(i * p.cols + i)] / double(p.cols);
  const std::vector<float> values = dequantize(matrix.view());
  std::vector<double> d(static_cast<size_t>(p.cols));
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t c = 0; c < p.cols; ++c) {
      const auto at = static_cast<size_t>(r * p.cols + c);
      d[static_cast<size_t>(c)] = double(values[at]) - p.weights[at];
    }
    for (int64_t i = 0; i < p.cols; ++i)
      for (int64_t j = 0; j < p.cols; ++j)
        total += d[static_cast<size_t>(i)] * d[static_cast<size_t>(j)] *
                 (p.hessian[static_cast<size_t>(i * p.cols + j)] + (i == j ? damping * mean : 0.0));
  }
  return total;
}

class EveryGrid : public testing::TestWithParam<TensorFormat> {};

TEST_P(EveryGrid, BeatsRoundingOnCorrelatedInputs) {
  const Problem p = correlated(96, 192, 3);
  ThreadPool pool(2);
  for (const bool act_order : {false, true}) {
    const auto solver = GptqSolver::create(p.hessian, p.cols, {.damping = 0.01f, .act_order = act_order});
    ASSERT_TRUE(solver.has_value());
    const float scale = amax(p);
    const GptqResult gptq = solver->quantize(p.weights, p.rows, GetParam(), scale, pool);
    Matrix rounded = quantize(p.weights, p.rows, p.cols, GetParam());
    const double of_gptq = objective(p, gptq.matrix, 0.01), of_rounding = objective(p, rounded, 0.01);
    EXPECT_LT(of_gptq, 0.7 * of_rounding);
    // What the solver reports is the same figure, measured on its way.
    EXPECT_NEAR(gptq.objective / of_gptq, 1.0, 0.01);
    EXPECT_NEAR(gptq.rounding_objective / of_rounding, 1.0, 0.01);
  }
}

TEST_P(EveryGrid, IsRoundingWhereInputsAreIndependent) {
  Problem p = correlated(70, 160, 5);
  std::fill(p.hessian.begin(), p.hessian.end(), 0.0f);
  for (int64_t i = 0; i < p.cols; ++i) p.hessian[static_cast<size_t>(i * p.cols + i)] = 3.0f;
  ThreadPool pool(1);
  const auto solver = GptqSolver::create(p.hessian, p.cols, {.search_scales = false});
  ASSERT_TRUE(solver.has_value());
  const GptqResult gptq = solver->quantize(p.weights, p.rows, GetParam(), amax(p), pool);
  const Matrix rounded = quantize(p.weights, p.rows, p.cols, GetParam());
  EXPECT_EQ(gptq.matrix.scales, rounded.scales);
  EXPECT_TRUE(
      std::equal(gptq.matrix.codes.data(), gptq.matrix.codes.data() + gptq.matrix.codes.size(), rounded.codes.data()));
}

TEST_P(EveryGrid, TheSameBytesWithAnyNumberOfThreads) {
  const Problem p = correlated(200, 144, 7);
  const auto solver = GptqSolver::create(p.hessian, p.cols, {});
  ASSERT_TRUE(solver.has_value());
  ThreadPool one(1), three(3);
  const GptqResult a = solver->quantize(p.weights, p.rows, GetParam(), amax(p), one);
  const GptqResult b = solver->quantize(p.weights, p.rows, GetParam(), amax(p), three);
  EXPECT_EQ(a.matrix.scales, b.matrix.scales);
  EXPECT_TRUE(std::equal(a.matrix.codes.data(), a.matrix.codes.data() + a.matrix.codes.size(), b.matrix.codes.data()));
  EXPECT_EQ(a.objective, b.objective);
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryGrid,
                         testing::Values(row_format(ElementType::kE4m3), tensor_wide_format(ElementType::kE4m3),
                                         block_format(ElementType::kE4m3, 128, 128),
                                         block_format(ElementType::kE4m3, 32, 64, ElementType::kE8m0),
                                         row_format(ElementType::kInt8), block_format(ElementType::kInt8, 1, 32),
                                         block_format(ElementType::kInt4, 1, 32), row_format(ElementType::kE2m1),
                                         group_format(ElementType::kInt4, 32, ElementType::kF16),
                                         group_format(ElementType::kInt4, 32, ElementType::kF16, true),
                                         group_format(ElementType::kE2m1, 32, ElementType::kE8m0),
                                         group_format(ElementType::kE2m1, 16, ElementType::kE4m3)));

TEST(Gptq, ColumnsWithoutActivationsAreRounded) {
  Problem p = correlated(8, 64, 9);
  for (int64_t i = 0; i < p.cols; ++i)
    for (const int64_t dead : {0, 17, 63})
      p.hessian[static_cast<size_t>(i * p.cols + dead)] = p.hessian[static_cast<size_t>(dead * p.cols + i)] = 0;
  ThreadPool pool(1);
  const auto solver = GptqSolver::create(p.hessian, p.cols, {});
  ASSERT_TRUE(solver.has_value());
  const Matrix gptq = solver->quantize(p.weights, p.rows, row_format(ElementType::kE4m3), 1, pool).matrix;
  const Matrix rounded = quantize(p.weights, p.rows, p.cols, row_format(ElementType::kE4m3));
  for (int64_t r = 0; r < p.rows; ++r)
    for (const int64_t dead : {0, 17, 63}) EXPECT_EQ(gptq.view().at(r, dead), rounded.view().at(r, dead));
}

TEST(Gptq, HessiansThatCannotBeFactored) {
  // Rank one with a tiny damping: it is raised until the factor exists.
  const int64_t n = 48;
  std::vector<float> hessian(static_cast<size_t>(n * n), 1e6f);
  const auto solver = GptqSolver::create(hessian, n, {.damping = 1e-20f});
  ASSERT_TRUE(solver.has_value());
  EXPECT_GT(solver->damping_used(), 1e-20f);
  hessian[5 * n + 5] = INFINITY;
  EXPECT_FALSE(GptqSolver::create(hessian, n, {}).has_value());
  std::fill(hessian.begin(), hessian.end(), 0.0f);  // no activations at all
  EXPECT_TRUE(GptqSolver::create(hessian, n, {}).has_value());
}

}  // namespace
}  // namespace octavo
