// Groups along K on the reference row: the order that kernels/linear.h states, written out, and the dequantized
// product.
#include "kernels/linear_problem.h"

namespace octavo {
namespace {

using testing::LinearProblem;
using testing::make_problem;
using testing::outputs;
using testing::reference_row;

constexpr ElementType kF16 = ElementType::kF16, kBf16 = ElementType::kBf16, kE4m3 = ElementType::kE4m3,
                      kE8m0 = ElementType::kE8m0, kE2m1 = ElementType::kE2m1, kInt4 = ElementType::kInt4,
                      kInt8 = ElementType::kInt8;

std::vector<TensorFormat> weights() {
  return {group_format(kInt4, 128, kF16),     group_format(kInt4, 32, kF16, true), group_format(kE2m1, 32, kE8m0),
          group_format(kE2m1, 16, kE4m3),     group_format(kE4m3, 32, kE8m0),      group_format(kInt8, 32, kF16),
          group_format(kInt8, 64, kF16, true)};
}

std::vector<TensorFormat> activations() {
  return {plain_format(kBf16),       row_format(kE4m3),           row_format(kInt8),
          tensor_wide_format(kE4m3), block_format(kE4m3, 1, 128), group_format(kE4m3, 32, kE8m0)};
}

// y[m, n] as linear.h says, every step spelled out.
float expected(const LinearProblem& problem, int64_t m, int64_t n) {
  const MatrixView w = problem.slabs[0].view(), x = problem.input.view();
  const bool w_grouped = w.format.grouped(), x_grouped = x.format.grouped();
  const int64_t w_step = w_grouped ? w.format.block_cols : w.cols, x_step = x_grouped ? x.format.block_cols : x.cols;
  const int64_t step = std::min(w_step, x_step);
  float total = 0.0f;
  for (int64_t begin = 0; begin < w.cols; begin += step) {
    float sum = 0.0f;
    for (int64_t k = begin; k < std::min(w.cols, begin + step); ++k)
      sum = std::fma(x.element_at(m, k), w.element_at(n, k), sum);
    const float wg = w_grouped ? w.scales[w.grid_index(n, begin)] : 1.0f;
    const float xg = x_grouped ? x.scales[x.grid_index(m, begin)] : 1.0f;
    total = std::fma(sum, wg * xg, total);
  }
  const float w_whole = w.format.outer() ? w.outer.value() : 1.0f;
  return total * (w_whole * (x_grouped ? 1.0f : x.scale_at(m, 0)));
}

TEST(LinearGroups, FollowTheStatedOrder) {
  uint64_t seed = 1;
  for (const TensorFormat& weight : weights())
    for (const TensorFormat& activation : activations()) {
      const LinearProblem problem = make_problem(weight, activation, 3, {32}, 300, ++seed);
      const std::vector<float> y = outputs(reference_row(), problem, 2);
      for (int64_t m = 0; m < 3; ++m)
        for (int64_t n = 0; n < 32; ++n)
          ASSERT_EQ(y[static_cast<size_t>(m * 32 + n)], expected(problem, m, n))
              << weight.describe() << " x " << activation.describe() << " at " << m << ", " << n;
    }
}

TEST(LinearGroups, AreTheDequantizedProduct) {
  uint64_t seed = 50;
  for (const TensorFormat& weight : weights())
    for (const TensorFormat& activation : activations()) {
      const LinearProblem problem = make_problem(weight, activation, 2, {32, 33}, 320, ++seed);
      const std::vector<float> y = outputs(reference_row(), problem);
      const std::vector<float> x = dequantize(problem.input.view());
      for (int64_t m = 0; m < 2; ++m)
        for (int64_t n = 0; n < 65; ++n) {
          const MatrixView slab = problem.slabs[n < 32 ? 0 : 1].view();
          double sum = 0, size = 0;
          for (int64_t k = 0; k < 320; ++k) {
            const double product =
                double(x[static_cast<size_t>(m * 320 + k)]) * double(slab.at(n < 32 ? n : n - 32, k));
            sum += product;
            size += std::fabs(product);
          }
          ASSERT_NEAR(y[static_cast<size_t>(m * 65 + n)], sum, 1e-5 * size) << weight.describe();
        }
    }
}

TEST(LinearGroups, EveryFormatFindsARow) {
  for (const TensorFormat& weight : weights())
    for (const TensorFormat& activation : activations()) {
      const LinearKey key{.weight = weight, .activation = activation, .rows = 64, .cols = 256};
      const LinearKernel& row = choose_linear(key, Isa::kAvx512Bf16);
      EXPECT_EQ(row.accepts(key), "");
      const LinearProblem problem = make_problem(weight, activation, 5, {64}, 256, 7);
      if (row.isa <= Isa::kAvx512)
        testing::expect_same_bits(outputs(reference_row(), problem), outputs(row, problem), "");
    }
  const LinearKey odd{
      .weight = group_format(kInt4, 48, kF16), .activation = block_format(kE4m3, 1, 32), .rows = 32, .cols = 96};
  EXPECT_NE(reference_row().accepts(odd), "");
}

}  // namespace
}  // namespace octavo
