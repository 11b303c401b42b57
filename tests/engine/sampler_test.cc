#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/random.h"
#include "engine/exponentials.h"
#include "engine/logprobs.h"

namespace octavo {
namespace {

std::vector<float> random_logits(size_t count, uint64_t seed, float spread = 3) {
  Random random(seed);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = spread * random.normal();
  return logits;
}

TokenId choose(const SamplingParams& params, std::span<const float> logits, int64_t position = 0,
               std::span<const TokenId> banned = {}) {
  SamplerScratch scratch;
  return Sampler(params, static_cast<int64_t>(logits.size()), {})
      .choose(logits, position, banned, nullptr, scratch)
      .value();
}

// Shares of each token over many positions of one seed.
std::vector<double> shares(const SamplingParams& params, std::span<const float> logits, int draws = 8000) {
  Sampler sampler(params, static_cast<int64_t>(logits.size()), {});
  SamplerScratch scratch;
  std::vector<double> result(logits.size());
  for (int i = 0; i < draws; ++i)
    result[static_cast<size_t>(*sampler.choose(logits, i, {}, nullptr, scratch))] += 1.0 / draws;
  return result;
}

std::vector<double> softmax(std::span<const float> logits, double temperature) {
  std::vector<double> p(logits.size());
  const double highest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - highest) / temperature);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& expected, int draws = 8000) {
  for (size_t i = 0; i < got.size(); ++i) {
    const double deviation = std::sqrt(expected[i] * (1 - expected[i]) / draws);
    // Five standard deviations, and three draws of a token that is hardly ever drawn; never one of probability 0.
    EXPECT_NEAR(got[i], expected[i], expected[i] > 0 ? 5 * deviation + 3.0 / draws : 0) << "token " << i;
  }
}

TEST(Argmax, FindsTheFirstOfTheHighest) {
  for (const size_t size : {1u, 2u, 31u, 32u, 33u, 100u, 49152u}) {
    const auto logits = random_logits(size, size);
    EXPECT_EQ(argmax(logits), std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (const size_t at : {size_t{0}, size / 2, size - 1}) {
      auto peak = logits;
      peak[at] = 100;
      peak[size - 1] = 100;
      EXPECT_EQ(argmax(peak), static_cast<TokenId>(at));
    }
  }
}

TEST(Argmax, NanNeverWins) {
  std::vector<float> logits(70, NAN);
  EXPECT_EQ(argmax(logits), 0);
  logits[40] = -5;
  EXPECT_EQ(argmax(logits), 40);
  logits[69] = -4;
  EXPECT_EQ(argmax(logits), 69);
}

TEST(Exponentials, AgreeWithTheLibrary) {
  const auto logits = random_logits(1000, 3, 10);
  std::vector<float> out(logits.size());
  const float highest = logits[static_cast<size_t>(argmax(logits))];
  exponentials(logits, highest, 0.7f, out);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = std::exp((static_cast<double>(logits[i]) - highest) * 0.7);
    EXPECT_NEAR(out[i], expected, 1e-5 * expected + 1e-37);
    sum += out[i];
  }
  EXPECT_NEAR(sum_of(out), sum, 1e-5 * sum);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(log_sum_exp(logits), std::log(total), 1e-5);
  const float odd[] = {NAN, -INFINITY, 0, -1e30f};
  exponentials(odd, 0, 1, std::span(out).first(4));
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(out[2], 1);
  EXPECT_EQ(out[3], 0);
}

TEST(Sampler, GreedyUpToTheBoundOfTemperature) {
  const auto logits = random_logits(5000, 1);
  for (const float temperature : {0.0f, 1e-8f, 1e-4f})
    for (int64_t position = 0; position < 20; ++position)
      EXPECT_EQ(choose({.temperature = temperature}, logits, position), argmax(logits));
  EXPECT_EQ(choose({.temperature = 100, .top_k = 1}, logits), argmax(logits));
}

TEST(Sampler, DependsOnSeedAndPositionOnly) {
  const auto logits = random_logits(3000, 2), other = random_logits(3000, 9);
  SamplingParams params{.temperature = 1, .seed = 42};
  Sampler busy(params, 3000, {});
  SamplerScratch scratch;
  std::vector<TokenId> in_order, backwards(50);
  for (int64_t i = 0; i < 50; ++i) in_order.push_back(*busy.choose(logits, i, {}, nullptr, scratch));
  for (int64_t i = 49; i >= 0; --i) {
    Sampler(params, 3000, {}).choose(other, 3, {}, nullptr, scratch);
    backwards[static_cast<size_t>(i)] = choose(params, logits, i);
  }
  EXPECT_EQ(in_order, backwards);
  params.seed = 43;
  std::vector<TokenId> another;
  for (int64_t i = 0; i < 50; ++i) another.push_back(choose(params, logits, i));
  EXPECT_NE(in_order, another);
  // Seeds whose distance is the step of the generator do not give the same draws one place later.
  params.seed = 42 + 0x9E3779B97F4A7C15ull;
  int same = 0;
  for (int64_t i = 0; i + 1 < 50; ++i) same += choose(params, logits, i) == in_order[static_cast<size_t>(i + 1)];
  EXPECT_LT(same, 25);
}

TEST(Sampler, UnseededRequestsDiffer) {
  EXPECT_NE(fresh_seed(), fresh_seed());
  EXPECT_NE(Sampler({.temperature = 1}, 10, {}).seed(), Sampler({.temperature = 1}, 10, {}).seed());
  EXPECT_EQ(sample_seed(7, 0), 7u);
  EXPECT_NE(sample_seed(7, 1), sample_seed(7, 2));
  EXPECT_EQ(sample_seed(7, 3), sample_seed(7, 3));
}

TEST(Sampler, DrawsFromTheDistribution) {
  const auto logits = random_logits(600, 4, 2);
  for (const float temperature : {0.5f, 1.0f, 3.0f})
    expect_close(shares({.temperature = temperature, .seed = 1}, logits), softmax(logits, temperature));
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  const auto logits = random_logits(600, 5, 2);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (const int64_t k : {2, 10, 599}) {
    auto masked = logits;
    for (float& logit : masked)
      if (logit < sorted[static_cast<size_t>(k - 1)]) logit = -1e9f;
    expect_close(shares({.temperature = 2, .top_k = k, .seed = 1}, logits), softmax(masked, 2));
  }
  for (const int64_t off : {-1, 0, 600, 100000})
    EXPECT_EQ(shares({.temperature = 2, .top_k = off, .seed = 1}, logits, 500),
              shares({.temperature = 2, .seed = 1}, logits, 500));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatSumsToIt) {
  for (const float spread : {0.01f, 2.0f, 20.0f}) {
    const auto logits = random_logits(600, 6, spread);
    const auto p = softmax(logits, 1);
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    for (const float top_p : {1e-6f, 0.3f, 0.9f, 0.999f}) {
      std::vector<double> expected(p.size());
      double sum = 0;
      for (size_t i = 0; i < order.size() && (i == 0 || sum < top_p - 1e-7); ++i)
        sum += expected[order[i]] = p[order[i]];
      for (double& value : expected) value /= sum;
      expect_close(shares({.temperature = 1, .top_p = top_p, .seed = 3}, logits), expected);
    }
  }
}

TEST(Sampler, MinPAndTopKWithTopP) {
  const std::vector<float> logits = {0, std::log(0.5f), std::log(0.25f), std::log(0.1f), std::log(0.05f)};
  auto got = shares({.temperature = 1, .min_p = 0.2f, .seed = 1}, logits);
  expect_close(got, {1 / 1.75, 0.5 / 1.75, 0.25 / 1.75, 0, 0});
  got = shares({.temperature = 1, .top_p = 0.8f, .top_k = 3, .seed = 1}, logits);  // of 1.75: 1 and 0.5 reach 0.857
  expect_close(got, {1 / 1.5, 0.5 / 1.5, 0, 0, 0});
}

TEST(Sampler, Penalties) {
  const std::vector<float> logits = {2.0f, 1.5f, -1.0f, -1.5f};
  SamplerScratch scratch;
  const TokenId prompt[] = {0};
  Sampler repetition({.repetition_penalty = 2}, 4, prompt);
  EXPECT_EQ(repetition.choose(logits, 0, {}, nullptr, scratch), 1);  // 2 / 2 < 1.5
  repetition.count(1);
  EXPECT_EQ(repetition.choose(logits, 1, {}, nullptr, scratch), 0);  // 1 > 0.75
  Sampler presence({.presence_penalty = 1}, 4, prompt);
  EXPECT_EQ(presence.choose(logits, 0, {}, nullptr, scratch), 0);  // the prompt does not count
  presence.count(0);
  EXPECT_EQ(presence.choose(logits, 1, {}, nullptr, scratch), 1);
  presence.count(0);
  presence.count(1);
  EXPECT_EQ(presence.choose(logits, 3, {}, nullptr, scratch), 0);  // both minus 1, once
  Sampler frequency({.frequency_penalty = 0.3f}, 4, {});
  frequency.count(0);
  EXPECT_EQ(frequency.choose(logits, 1, {}, nullptr, scratch), 0);
  frequency.count(0);
  EXPECT_EQ(frequency.choose(logits, 2, {}, nullptr, scratch), 1);
  const std::vector<float> negative = {-1.0f, -1.5f};
  Sampler pushed({.repetition_penalty = 2}, 2, prompt);
  EXPECT_EQ(pushed.choose(negative, 0, {}, nullptr, scratch), 1);  // -1 x 2 < -1.5
}

TEST(Sampler, BiasBansFiltersAndLimits) {
  const std::vector<float> logits = {1, 2, 3, 4};
  SamplerScratch scratch;
  EXPECT_EQ(choose({.logit_bias = {{0, 5.0f}}}, logits), 0);
  EXPECT_EQ(choose({.logit_bias = {{3, -100.0f}}}, logits), 2);
  const TokenId banned[] = {3, 2, 77};
  EXPECT_EQ(choose({}, logits, 0, banned), 1);
  const Sampler limited({}, 2, {});
  EXPECT_EQ(limited.choose(logits, 0, {}, nullptr, scratch), 1);
  const std::vector<bool> only_first = {true, false, false, false}, nothing(4, false);
  const Sampler sampler({.temperature = 2, .seed = 1}, 4, {});
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(sampler.choose(logits, i, {}, &only_first, scratch), 0);
  EXPECT_EQ(sampler.choose(logits, 0, {}, &nothing, scratch), std::nullopt);
  EXPECT_EQ(sampler.choose(std::vector<float>(4, NAN), 0, {}, nullptr, scratch), std::nullopt);
  EXPECT_EQ(sampler.choose(std::vector<float>{NAN, 1, NAN, NAN}, 0, {}, nullptr, scratch), 1);
}

TEST(Logprobs, AreTheLogSoftmaxWithAFiniteFloor) {
  auto logits = random_logits(1000, 8, 4);
  logits[7] = -INFINITY;
  logits[8] = NAN;
  logits[9] = -1e6f;
  logits[999] = 50;  // beyond the limit: counts in the softmax, is not listed
  const double normalizer = log_sum_exp(logits);
  const TokenLogprob result = token_logprob(logits, 5, 20, 999);
  EXPECT_EQ(result.token, 5);
  EXPECT_NEAR(result.logprob, logits[5] - normalizer, 1e-4);
  ASSERT_EQ(result.top.size(), 20u);
  EXPECT_EQ(result.top[0].first, argmax(std::span(logits).first(999)));
  for (size_t i = 1; i < 20; ++i) EXPECT_LE(result.top[i].second, result.top[i - 1].second);
  for (const TokenId id : {7, 8, 9}) EXPECT_EQ(token_logprob(logits, id, 0, 999).logprob, -9999.0f);
  const TokenLogprob all = token_logprob(std::vector<float>{1, 1, 2}, 1, 20, 3);
  ASSERT_EQ(all.top.size(), 3u);
  EXPECT_EQ(all.top[0].first, 2);
  EXPECT_EQ(all.top[1].first, 0);  // the lower id first
  EXPECT_EQ(all.top[2].second, all.logprob);
}

}  // namespace
}  // namespace octavo
