#include "loadgen/schedule.h"

#include <cmath>

#include "base/random.h"

namespace octavo {

std::vector<double> poisson_schedule(size_t count, double rate, uint64_t seed) {
  std::vector<double> times;
  times.reserve(count);
  Random random(seed);
  double time = 0;
  for (size_t i = 0; i < count; ++i) {
    times.push_back(time);
    time += std::isinf(rate) ? 0.0 : -std::log(1.0 - random.uniform()) / rate;
  }
  return times;
}

}  // namespace octavo
