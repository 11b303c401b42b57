// Routing against its definition in double precision, and what a router sees in a model.
#include "models/layers/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace octavo {
namespace {

ExpertsConfig experts_of(int64_t count, int64_t per_token, bool normalize) {
  return {.count = count, .per_token = per_token, .intermediate_size = 1, .normalize = normalize, .layers = {true}};
}

// Weight of each (row, expert); 0 where a row does not pass it.
std::vector<double> expected(const std::vector<float>& scores, const ExpertsConfig& experts) {
  std::vector<double> weights(scores.size());
  const auto count = static_cast<size_t>(experts.count), k = static_cast<size_t>(experts.per_token);
  for (size_t begin = 0; begin < scores.size(); begin += count) {
    std::vector<double> p(scores.begin() + static_cast<std::ptrdiff_t>(begin),
                          scores.begin() + static_cast<std::ptrdiff_t>(begin + count));
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0, chosen = 0;
    for (double& value : p) sum += value = std::exp(value - largest);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    for (size_t j = 0; j < k; ++j) chosen += p[order[j]] / sum;
    for (size_t j = 0; j < k; ++j) weights[begin + order[j]] = p[order[j]] / sum / (experts.normalize ? chosen : 1);
  }
  return weights;
}

TEST(Routing, IsTheSoftmaxOfTheLargestScores) {
  Random random(3);
  ThreadPool pool(2);
  for (const auto& [count, per_token] : {std::pair{1, 1}, {6, 2}, {8, 8}, {64, 4}, {128, 8}})
    for (const bool normalize : {false, true})
      for (const int64_t rows : {1, 7, 40}) {
        const ExpertsConfig experts = experts_of(count, per_token, normalize);
        std::vector<float> scores(static_cast<size_t>(rows * count));
        for (float& score : scores) score = random.uniform(-4.0f, 4.0f);
        const std::vector<double> want = expected(scores, experts);
        std::vector<double> found(want.size());
        Routing routing;
        routing.assign(scores.data(), rows, experts, pool);
        ASSERT_EQ(routing.num_experts(), count);
        for (int64_t e = 0; e < count; ++e) {
          int32_t last = -1;
          for (const auto [row, weight] : routing.rows_of(e)) {
            EXPECT_GT(row, last);
            last = row;
            found[static_cast<size_t>(row * count + e)] = weight;
          }
        }
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(found[i], want[i], 1e-6) << count << ", " << i;
      }
}

// Of equal scores the first ones; scores far apart; every token to the same experts, and none to the others.
TEST(Routing, TiesExtremesAndExpertsWithoutTokens) {
  ThreadPool pool(1);
  Routing routing;
  const ExpertsConfig experts = experts_of(4, 2, true);
  const std::vector<float> scores = {5, 5, 5, 5, /**/ -1e30f, 0, 1e30f, 0, /**/ 300, -300, 299, -300};
  routing.assign(scores.data(), 3, experts, pool);
  const auto rows = [&](int64_t expert) {
    std::vector<int32_t> out;
    for (const auto [row, weight] : routing.rows_of(expert)) out.push_back(row);
    return out;
  };
  EXPECT_EQ(rows(0), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(rows(1), (std::vector<int32_t>{0}));
  EXPECT_EQ(rows(2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(rows(3), (std::vector<int32_t>{}));
  EXPECT_EQ(routing.rows_of(0)[0].weight, 0.5f);
  EXPECT_EQ(routing.rows_of(0)[1].weight, 0.0f);  // of those that underflow the first
  EXPECT_EQ(routing.rows_of(2)[0].weight, 1.0f);
}

// What a damaged model makes of them: as many experts as ever, and weights that show it.
TEST(Routing, ScoresThatAreNotFinite) {
  ThreadPool pool(1);
  Routing routing;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {kNan, kNan, kNan, /**/ 1, kNan, 2, /**/ kInf, 0, kInf, /**/ -kInf, -kInf, -kInf};
  for (const bool normalize : {false, true}) {
    routing.assign(scores.data(), 4, experts_of(3, 2, normalize), pool);
    std::vector<int> passed(4);
    for (int64_t e = 0; e < 3; ++e)
      for (const auto [row, weight] : routing.rows_of(e)) {
        ++passed[static_cast<size_t>(row)];
        EXPECT_TRUE(std::isnan(weight)) << row << ", " << e;
      }
    EXPECT_EQ(passed, (std::vector<int>{2, 2, 2, 2}));
  }
}

}  // namespace
}  // namespace octavo
