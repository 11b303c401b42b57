// Scratch memory of kernels: grows to the largest request and is reused; never shared between concurrent calls.
#pragma once

#include <cstddef>
#include <deque>

#include "base/aligned.h"

namespace octavo {

class Scratch {
 public:
  // At least `bytes` bytes, 64-byte aligned, contents undefined; valid until the next get() of the same slot. Call from
  // one thread.
  void* get(int slot, size_t bytes);
  size_t total_bytes() const;

 private:
  std::deque<AlignedBytes> slots_;
};

}  // namespace octavo
