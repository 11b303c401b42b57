#include "loadgen/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace octavo {
namespace {

constexpr uint64_t kSeed = 20240229;
constexpr size_t kResamples = 2000, kMinResamples = 200;
constexpr size_t kMaxWork = size_t{200} << 20;  // values touched by all resamples together

// Requests renamed to 0, 1, ... in the order of their numbers; returns how many there are.
size_t renumber(std::vector<Observation>& observations) {
  std::vector<uint32_t> names;
  names.reserve(observations.size());
  for (const Observation& o : observations) names.push_back(o.request);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (Observation& o : observations)
    o.request = static_cast<uint32_t>(std::lower_bound(names.begin(), names.end(), o.request) - names.begin());
  return names.size();
}

struct Resample {
  double mean = 0, median = 0;
};

// Mean and median of the sample in which each observation counts `times` of its request.
Resample weighted(std::span<const Observation> sorted, std::span<const uint32_t> times) {
  uint64_t count = 0;
  double sum = 0;
  for (const Observation& o : sorted) {
    count += times[o.request];
    sum += times[o.request] * o.value;
  }
  // The ranks (count - 1) / 2 rounded down and up are the two middle ones.
  const uint64_t low_rank = (count - 1) / 2, high_rank = count / 2;
  uint64_t seen = 0;
  double low = 0;
  for (const Observation& o : sorted) {
    const uint64_t next = seen + times[o.request];
    if (seen <= low_rank && low_rank < next) low = o.value;
    if (seen <= high_rank && high_rank < next) return {sum / static_cast<double>(count), (low + o.value) / 2};
    seen = next;
  }
  return {sum / static_cast<double>(count), low};
}

Interval middle_95(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return {percentile(values, 0.025), percentile(values, 0.975)};
}

void bootstrap(std::span<const Observation> sorted, size_t num_requests, SampleSummary& summary) {
  const size_t resamples = std::clamp(kMaxWork / sorted.size(), kMinResamples, kResamples);
  Random random(kSeed);
  std::vector<double> means, medians;
  std::vector<uint32_t> times(num_requests);
  for (size_t i = 0; i < resamples; ++i) {
    std::fill(times.begin(), times.end(), 0);
    for (size_t draw = 0; draw < num_requests; ++draw) ++times[random.below(num_requests)];
    const Resample resample = weighted(sorted, times);
    means.push_back(resample.mean);
    medians.push_back(resample.median);
  }
  summary.mean_95 = middle_95(means);
  summary.median_95 = middle_95(medians);
}

}  // namespace

double percentile(std::span<const double> sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

SampleSummary summarize(std::vector<Observation> observations) {
  SampleSummary summary{.count = observations.size()};
  if (observations.empty()) return summary;
  const size_t num_requests = renumber(observations);
  std::sort(observations.begin(), observations.end(),
            [](const Observation& a, const Observation& b) { return a.value < b.value; });
  std::vector<double> sorted;
  sorted.reserve(observations.size());
  double sum = 0, squares = 0;
  for (const Observation& o : observations) {
    sorted.push_back(o.value);
    sum += o.value;
  }
  const auto count = static_cast<double>(sorted.size());
  summary.mean = sum / count;
  for (const double value : sorted) squares += (value - summary.mean) * (value - summary.mean);
  summary.std = std::sqrt(squares / count);
  summary.median = percentile(sorted, 0.5);
  summary.p90 = percentile(sorted, 0.9);
  summary.p99 = percentile(sorted, 0.99);
  bootstrap(observations, num_requests, summary);
  return summary;
}

}  // namespace octavo
