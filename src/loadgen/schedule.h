// When requests of an open loop are due.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

// Seconds since the start: a Poisson process of `rate` requests per second, its first request at 0. The gaps are
// independent and exponential with mean 1 / rate. An infinite rate: all at 0. The same seed gives the same times.
std::vector<double> poisson_schedule(size_t count, double rate, uint64_t seed);

}  // namespace octavo
