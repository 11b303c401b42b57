// The sum of x x^T, against double arithmetic.
#include "quantize/hessian.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace octavo {
namespace {

class EveryElement : public testing::TestWithParam<ElementType> {};

TEST_P(EveryElement, IsTheSumOverTokens) {
  const int64_t cols = 210;  // no multiple of a block or a vector
  Random random(1);
  std::vector<double> expected(static_cast<size_t>(cols * cols));
  ThreadPool one(1), three(3);
  HessianWork work;  // shared, as the Hessians of a layer do
  Hessian a(cols, best_isa(), work), b(cols, best_isa(), work);
  ActivationBuffer buffer;
  for (const int64_t tokens : {70, 33, 129}) {
    const Activation rows = buffer.resize(plain_format(GetParam()), tokens, cols);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < cols; ++c)
        store_element(GetParam(), rows.row(t), static_cast<size_t>(c), t == 0 ? 1e6f : random.normal());
    a.add(rows, one);
    b.add(rows, three);
    // The first token's huge values count as if its row were twice as long as the median's.
    std::vector<double> squares(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < cols; ++c)
        squares[static_cast<size_t>(t)] += std::pow(load_element(GetParam(), rows.row(t), static_cast<size_t>(c)), 2);
    std::vector<double> sorted = squares;
    std::sort(sorted.begin(), sorted.end());
    const double longest = 4 * sorted[sorted.size() / 2];
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < cols; ++i)
        for (int64_t j = 0; j < cols; ++j)
          expected[static_cast<size_t>(i * cols + j)] +=
              std::min(1.0, longest / squares[static_cast<size_t>(t)]) *
              (load_element(GetParam(), rows.row(t), static_cast<size_t>(i))) *
              load_element(GetParam(), rows.row(t), static_cast<size_t>(j));
  }
  EXPECT_EQ(a.tokens(), 70 + 33 + 129);
  const auto matrix = a.matrix(), other = b.matrix();
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(matrix[i], expected[i], 2e-4 * 229) << i;
  EXPECT_TRUE(std::equal(matrix.begin(), matrix.end(), other.begin()));
  for (int64_t i = 0; i < cols; ++i)
    for (int64_t j = 0; j < i; ++j)
      ASSERT_EQ(matrix[static_cast<size_t>(i * cols + j)], matrix[static_cast<size_t>(j * cols + i)]);
}

INSTANTIATE_TEST_SUITE_P(Elements, EveryElement, testing::Values(ElementType::kBf16, ElementType::kF32));

}  // namespace
}  // namespace octavo
