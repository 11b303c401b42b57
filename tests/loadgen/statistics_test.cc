// Percentiles, bootstrap intervals, the Poisson schedule, the figures of a run and its goodput.
#include "loadgen/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "loadgen/schedule.h"
#include "loadgen/summary.h"

namespace octavo {
namespace {

std::vector<Observation> observations(const std::vector<double>& values) {
  std::vector<Observation> out;
  for (size_t i = 0; i < values.size(); ++i) out.push_back({values[i], static_cast<uint32_t>(i)});
  return out;
}

TEST(Statistics, PercentilesInterpolateBetweenClosestRanks) {
  const std::vector<double> sorted = {1, 2, 3, 4, 10};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.5), 3);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.9), 4 + 0.6 * 6);  // numpy.percentile(sorted, 90) == 7.6
  EXPECT_DOUBLE_EQ(percentile(sorted, 1), 10);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(percentile({}, 0.5), 0);
}

TEST(Statistics, SummaryOfAKnownSample) {
  const SampleSummary s = summarize(observations({4, 1, 3, 2}));
  EXPECT_EQ(s.count, 4u);
  EXPECT_DOUBLE_EQ(s.mean, 2.5);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.std, std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(s.p90, 3.7);
  const SampleSummary one = summarize(observations({5}));
  EXPECT_DOUBLE_EQ(one.mean_95.low, 5);
  EXPECT_DOUBLE_EQ(one.median_95.high, 5);
  EXPECT_EQ(summarize({}).count, 0u);
}

// Of many samples of a known distribution, about 95 % of the intervals hold the true value.
TEST(Statistics, IntervalsCoverTheTruth) {
  Random random(11);
  int mean_hits = 0, median_hits = 0;
  constexpr int kSamples = 400;
  for (int sample = 0; sample < kSamples; ++sample) {
    std::vector<double> values;
    for (int i = 0; i < 60; ++i) values.push_back(-std::log(1.0 - random.uniform()));  // mean 1, median ln 2
    const SampleSummary s = summarize(observations(values));
    mean_hits += s.mean_95.low <= 1.0 && 1.0 <= s.mean_95.high ? 1 : 0;
    median_hits += s.median_95.low <= std::log(2.0) && std::log(2.0) <= s.median_95.high ? 1 : 0;
  }
  for (const int hits : {mean_hits, median_hits}) {  // the bootstrap of 60 exponential values covers 92 to 96 %
    EXPECT_GT(hits, kSamples * 89 / 100);
    EXPECT_LT(hits, kSamples * 98 / 100);
  }
}

// Values of one request move together: what counts is the number of requests, not of values.
TEST(Statistics, TheBootstrapDrawsRequests) {
  Random random(5);
  std::vector<Observation> single, repeated;
  for (uint32_t request = 0; request < 50; ++request) {
    const double value = random.uniform();
    single.push_back({value, 7 * request});
    for (int i = 0; i < 20; ++i) repeated.push_back({value, 7 * request});
  }
  const SampleSummary a = summarize(single), b = summarize(repeated);
  EXPECT_NEAR(a.mean_95.low, b.mean_95.low, 1e-9);
  EXPECT_NEAR(a.mean_95.high, b.mean_95.high, 1e-9);
  EXPECT_GT(a.mean_95.high - a.mean_95.low, 0.1);
}

TEST(Schedule, IsAPoissonProcessOfItsRate) {
  constexpr size_t kCount = 20000;
  constexpr double kRate = 40;
  const std::vector<double> times = poisson_schedule(kCount, kRate, 3);
  EXPECT_EQ(times, poisson_schedule(kCount, kRate, 3));
  EXPECT_NE(times, poisson_schedule(kCount, kRate, 4));
  EXPECT_EQ(times.front(), 0);
  std::vector<double> gaps;
  for (size_t i = 1; i < kCount; ++i) gaps.push_back(times[i] - times[i - 1]);
  std::sort(gaps.begin(), gaps.end());
  // Kolmogorov-Smirnov distance from the exponential distribution, against its 0.1 % limit.
  double distance = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    const double expected = 1 - std::exp(-kRate * gaps[i]);
    distance = std::max({distance, std::abs(expected - static_cast<double>(i) / gaps.size()),
                         std::abs(expected - static_cast<double>(i + 1) / gaps.size())});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(gaps.size()));
  // Counts per second have the variance of their mean.
  std::vector<double> counts(static_cast<size_t>(times.back()), 0);
  for (const double time : times)
    if (time < static_cast<double>(counts.size())) ++counts[static_cast<size_t>(time)];
  const SampleSummary per_second = summarize(observations(counts));
  EXPECT_NEAR(per_second.mean, kRate, 1.5);
  EXPECT_NEAR(per_second.std * per_second.std / per_second.mean, 1.0, 0.2);
  EXPECT_EQ(poisson_schedule(3, std::numeric_limits<double>::infinity(), 1), (std::vector<double>{0, 0, 0}));
}

RequestRecord record(double due, double first, double last, int64_t tokens, std::string error = {}) {
  return {.due = due,
          .first = first,
          .last = last,
          .gaps = {(last - first) / 2, (last - first) / 2},
          .prompt_tokens = 10,
          .output_tokens = tokens,
          .counted_by_server = true,
          .error = std::move(error)};
}

TEST(Summary, FiguresOfKnownRecords) {
  const std::vector<RequestRecord> records = {record(0, 0.1, 1.1, 11),       record(1, 1.5, 1.5, 1),
                                              record(2, 2.2, 4.0, 19),       record(2, 2, 3, 5, "refused"),
                                              record(2, 2, 3, 5, "refused"), record(3, 3, 3, 0, "late")};
  const LoadSummary s = summarize_load(records, *parse_slo("ttft:250,tpot:100.001", "--slo"));
  EXPECT_EQ(s.completed, 3u);
  EXPECT_EQ(s.failed, 3u);
  EXPECT_EQ(s.failures.front(), (std::pair<std::string, size_t>{"refused", 2}));
  EXPECT_EQ(s.failures.size(), 2u);
  EXPECT_DOUBLE_EQ(s.duration, 4);
  EXPECT_EQ(s.input_tokens, 30);
  EXPECT_EQ(s.output_tokens, 31);
  EXPECT_DOUBLE_EQ(s.output_throughput, 31 / 4.0);
  EXPECT_DOUBLE_EQ(s.total_throughput, 61 / 4.0);
  EXPECT_DOUBLE_EQ(s.request_throughput, 3 / 4.0);
  EXPECT_EQ(s.good, 2u);  // the second's first token came after 500 ms
  EXPECT_DOUBLE_EQ(s.request_goodput, 2 / 4.0);
  EXPECT_EQ(s.tpot.count, 2u);  // an answer of one token has none
  EXPECT_NEAR(s.tpot.mean, 0.1, 1e-12);
  EXPECT_NEAR(s.ttft.mean, (0.1 + 0.5 + 0.2) / 3, 1e-12);
  EXPECT_NEAR(s.e2e.median, 1.1, 1e-12);
  EXPECT_EQ(s.itl.count, 6u);
  EXPECT_EQ(s.max_concurrent, 3u);  // two ended when the sixth was due
}

TEST(Summary, NothingCompleted) {
  const std::vector<RequestRecord> records = {record(0, 0, 1, 0, "refused")};
  const LoadSummary s = summarize_load(records, {});
  EXPECT_EQ(s.completed, 0u);
  EXPECT_EQ(s.ttft.count, 0u);
  EXPECT_EQ(s.output_throughput, 0);
  EXPECT_EQ(summarize_load({}, {}).request_throughput, 0);
}

TEST(Slo, Parsing) {
  const Result<Slo> slo = parse_slo("ttft:500 tpot:50.5,e2el:10000", "--goodput");
  ASSERT_TRUE(slo);
  EXPECT_DOUBLE_EQ(*slo->ttft, 0.5);
  EXPECT_DOUBLE_EQ(*slo->tpot, 0.0505);
  EXPECT_DOUBLE_EQ(*slo->e2e, 10);
  EXPECT_FALSE(parse_slo("", "--slo")->any());
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:5x", "ttft:-1", "ttft:0", "ttft:nan", "ttft:inf", "itl:5",
                          "ttft:1,ttft:2", ":5"}) {
    const Result<Slo> refused = parse_slo(bad, "--slo");
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().where, "--slo");
  }
}

}  // namespace
}  // namespace octavo
