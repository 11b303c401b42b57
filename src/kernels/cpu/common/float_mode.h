// The floating-point environment that kernels are written for.
#pragma once

#include <immintrin.h>

namespace octavo {

// For its lifetime: round to nearest even, subnormals kept (no FTZ, no DAZ), whatever the caller has set.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & kMode) != 0) _mm_setcsr(saved_ & ~kMode);
  }
  ~DefaultFloatMode() {
    if ((saved_ & kMode) != 0) _mm_setcsr(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  static constexpr unsigned kMode = 0xE040;  // FTZ, rounding control, DAZ
  unsigned saved_;
};

}  // namespace octavo
