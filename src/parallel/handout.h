// Handout: work for several threads in pieces that shrink towards the end. On a shared machine a core is often slower
// for a while; it then takes fewer pieces instead of being waited for.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace octavo {

class Handout {
 public:
  struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
  };

  // Items [0, n).
  Handout(int64_t n, int threads) : n_(n), threads_(threads) {}

  // The next piece, a multiple of `least` items (the last one less); empty at the end. Thread-safe.
  Range take(int64_t least) {
    int64_t begin = next_.load(std::memory_order_relaxed), size = 0;
    do {
      size = std::max(least, (n_ - begin) / (2 * threads_) / least * least);
    } while (begin < n_ && !next_.compare_exchange_weak(begin, begin + size, std::memory_order_relaxed));
    return {std::min(begin, n_), std::min(begin + size, n_)};
  }

 private:
  const int64_t n_, threads_;
  std::atomic<int64_t> next_{0};
};

}  // namespace octavo
