#include "evaluate/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace octavo {
namespace {

double plain_nll(std::span<const float> logits, size_t target) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - logits[target]);
  return std::log(sum);
}

TEST(NegativeLogLikelihood, AgreesWithThePlainSum) {
  Random random(3);
  for (const size_t size : {1u, 15u, 16u, 17u, 255u, 256u, 257u, 49152u}) {
    std::vector<float> logits(size);
    for (float& x : logits) x = 6 * random.normal();
    for (const size_t target : {size_t{0}, size / 2, size - 1})
      EXPECT_NEAR(negative_log_likelihood(logits, static_cast<TokenId>(target)), plain_nll(logits, target),
                  2e-6 * size_t{8});
  }
}

TEST(NegativeLogLikelihood, IsSafeAtTheExtremes) {
  const std::vector<float> logits = {3e4f, -3e4f, 0.0f};
  EXPECT_NEAR(negative_log_likelihood(logits, 0), 0, 1e-12);
  EXPECT_NEAR(negative_log_likelihood(logits, 1), 6e4, 1e-3);
}

TEST(MeanError, OneValueSaysNothingOfItsError) {
  EXPECT_TRUE(std::isnan(mean_error(std::vector<double>{3}).standard_error));
  EXPECT_EQ(mean_error(std::vector<double>{3}).mean, 3);
  EXPECT_EQ(mean_error(std::vector<double>{3, 3}).standard_error, 0);
  EXPECT_DOUBLE_EQ(mean_error(std::vector<double>{1, 3}).standard_error, 1);
}

}  // namespace
}  // namespace octavo
