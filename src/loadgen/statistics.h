// Mean, median, percentiles and bootstrap confidence intervals of a sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octavo {

// A value and the request it comes from. Values of one request are not independent of each other (the gaps between its
// tokens), so the bootstrap draws requests, not values.
struct Observation {
  double value = 0;
  uint32_t request = 0;
};

struct Interval {
  double low = 0, high = 0;
};

struct SampleSummary {
  size_t count = 0;
  double mean = 0, median = 0, std = 0;  // std with divisor n, as numpy's
  double p90 = 0, p99 = 0;
  Interval mean_95, median_95;
};

// Of sorted values, by linear interpolation between the closest ranks (numpy's default). `share` from 0 to 1; 0 for an
// empty sample.
double percentile(std::span<const double> sorted, double share);

// All zero for an empty sample. The intervals are the 2.5 % and 97.5 % percentiles of the statistic over bootstrap
// resamples of the requests, drawn with a fixed seed: the same observations give the same intervals.
SampleSummary summarize(std::vector<Observation> observations);

}  // namespace octavo
