// The roofline of this machine: what its memory and its arithmetic units do at most, measured now, with a pool's
// threads.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "parallel/thread_pool.h"

namespace octavo {

struct Roofline {
  double read_gb_s = 0;        // streaming reads beyond the caches
  double fma_gflops = 0;       // FP32, the widest vectors there are; a multiply-add is two operations
  double bf16_dot_gflops = 0;  // 0: not there
  double int8_gops = 0;        // 0: not there
};

// Takes about 150 ms the first time (the memory that is read is kept), 100 ms after. Each figure is the best of a few.
Roofline measure_roofline(ThreadPool& pool);
// The same without memory of its own: reads `memory`, blocks aligned to 64 bytes that are there anyway, or the first
// 512 MB of them (small ones are read from the caches, which then bound who works on them). It pauses every few
// milliseconds to ask whether it is `interrupted`; none if so.
std::optional<Roofline> measure_roofline(ThreadPool& pool, std::span<const std::span<const std::byte>> memory,
                                         const std::function<bool()>& interrupted);

}  // namespace octavo
