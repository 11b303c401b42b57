// Factors of channels and searched scales: never worse than what they replace, and exact in what they claim.
#include "quantize/channel_factors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "formats/quantize_rows.h"
#include "quantize/scale_search.h"

namespace octavo {
namespace {

std::vector<float> normal(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.normal();
  return values;
}

// X^T X of activations whose channels grow in size.
std::vector<float> hessian_of(size_t size) {
  constexpr size_t kTokens = 200;
  std::vector<float> x = normal(kTokens * size, 3), h(size * size);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= i % size % 16 == 0 ? 30.0f : 1.0f;
  for (size_t t = 0; t < kTokens; ++t)
    for (size_t r = 0; r < size; ++r)
      for (size_t c = 0; c < size; ++c) h[r * size + c] += x[t * size + r] * x[t * size + c];
  return h;
}

TEST(OutputError, IsTheTrace) {
  const int64_t size = 40, rows = 7;
  const std::vector<float> h = hessian_of(size);
  ThreadPool pool(2);
  OutputError error(h, size, best_isa());
  std::vector<float> d(static_cast<size_t>(rows * error.stride()));
  const std::vector<float> values = normal(static_cast<size_t>(rows * size), 5);
  double expected = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < size; ++i) {
      d[static_cast<size_t>(r * error.stride() + i)] = values[static_cast<size_t>(r * size + i)];
      for (int64_t j = 0; j < size; ++j)
        expected += static_cast<double>(values[static_cast<size_t>(r * size + i)]) *
                    h[static_cast<size_t>(i * size + j)] * values[static_cast<size_t>(r * size + j)];
    }
  EXPECT_NEAR(error(d, rows, pool), expected, 1e-4 * expected);
}

TEST(Awq, FindsFactorsForUnequalChannels) {
  constexpr size_t kSize = 128;
  const std::vector<float> h = hessian_of(kSize), w = normal(kSize * 24, 9);
  std::vector<float> magnitude(kSize);
  for (size_t i = 0; i < kSize; ++i) magnitude[i] = std::sqrt(h[i * kSize + i]);
  ThreadPool pool(2);
  for (const TensorFormat& format : {group_format(ElementType::kInt4, 32, ElementType::kF16),
                                     group_format(ElementType::kE2m1, 16, ElementType::kE4m3),
                                     row_format(ElementType::kInt8), tensor_wide_format(ElementType::kInt8)}) {
    const FactorWeight weight{w, 24, format, "group"};
    const AwqFactors found = awq_factors(h, magnitude, {&weight, 1}, best_isa(), pool);
    EXPECT_GT(found.exponent, 0) << format.describe();
    EXPECT_LT(found.error, 0.9 * found.plain_error) << format.describe();
    const auto [low, high] = std::minmax_element(found.factors.begin(), found.factors.end());
    EXPECT_NEAR(*low * *high, 1, 1e-4);
  }
  // Channels of one size leave nothing to balance.
  const FactorWeight weight{w, 24, row_format(ElementType::kInt8), ""};
  const AwqFactors same = awq_factors(h, std::vector<float>(kSize, 2.0f), {&weight, 1}, best_isa(), pool);
  EXPECT_EQ(same.error, same.plain_error);
}

TEST(Smooth, SharesTheRangeBetweenActivationAndWeight) {
  const std::vector<float> x = {64, 1, 0, 4}, w = {1, 4, 2, 0};
  const std::vector<float> factors = smooth_factors(x, w, 0.5f);
  EXPECT_FLOAT_EQ(factors[0], 8);     // both sides: 8
  EXPECT_FLOAT_EQ(factors[1], 0.5f);  // both sides: 2
  EXPECT_EQ(factors[2], 1);
  EXPECT_EQ(factors[3], 1);
}

TEST(ScaleSearch, LowersTheWeightedErrorOfEveryGroup) {
  constexpr int64_t kRows = 9, kCols = 200;  // the last group is short
  std::vector<float> values = normal(kRows * kCols, 21), importance = normal(kCols, 22);
  for (float& weight : importance) weight *= weight;
  std::fill_n(values.begin(), 64, 0.0f);
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  ThreadPool pool(2);
  const RowsView view{ElementType::kF32, reinterpret_cast<const std::byte*>(values.data()), kRows, kCols};
  for (const TensorFormat& format : {group_format(ElementType::kInt4, 64, ElementType::kF16),
                                     group_format(ElementType::kInt4, 64, ElementType::kF16, true),
                                     group_format(ElementType::kE2m1, 32, ElementType::kE8m0),
                                     group_format(ElementType::kE2m1, 16, ElementType::kE4m3)}) {
    ASSERT_TRUE(searches_scales(format));
    const Matrix plain = round_matrix(view, format, amax),
                 searched = round_matrix_searched(values, kRows, kCols, importance, format, amax, pool);
    double before = 0, after = 0;
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t begin = 0; begin < kCols; begin += format.block_cols) {
        double plain_error = 0, searched_error = 0;
        for (int64_t c = begin; c < std::min<int64_t>(kCols, begin + format.block_cols); ++c) {
          const double value = values[static_cast<size_t>(r * kCols + c)], weight = importance[static_cast<size_t>(c)];
          plain_error += weight * std::pow(plain.view().at(r, c) - value, 2);
          searched_error += weight * std::pow(searched.view().at(r, c) - value, 2);
        }
        EXPECT_LE(searched_error, plain_error * 1.0001) << format.describe() << ", row " << r << ", column " << begin;
        before += plain_error;
        after += searched_error;
      }
    EXPECT_LT(after, (format.scale == ElementType::kE8m0 ? 1.0 : 0.97) * before) << format.describe();
  }
  EXPECT_FALSE(searches_scales(row_format(ElementType::kE4m3)));
  EXPECT_FALSE(searches_scales(block_format(ElementType::kE4m3, 128, 128)));
}

}  // namespace
}  // namespace octavo
