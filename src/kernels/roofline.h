// The roofline of this machine: what its memory and its arithmetic units do at most, measured now, with a pool's
// threads.
#pragma once

#include <cstddef>

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
// The same with `bytes` of memory, which are given back.
Roofline measure_roofline_once(ThreadPool& pool, size_t bytes);

}  // namespace octavo
