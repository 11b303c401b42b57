// INT8 and INT4 codes: symmetric, round to nearest, ties to even, saturating to +-127 and +-7.
#pragma once

#include <cmath>
#include <cstdint>

#include "numerics/bits.h"

namespace octavo {

template <int kLimit>
struct SymmetricInt {
  static constexpr float max() { return static_cast<float>(kLimit); }
  static float decode(int8_t code) { return static_cast<float>(code); }
  // NaN has no integer code: it gives 0, and the group's scale carries the NaN (docs/semantics.md, "poison").
  static int8_t encode(float x) {
    if (is_nan(x)) return 0;
    if (x >= max()) return kLimit;
    if (x <= -max()) return -kLimit;
    return static_cast<int8_t>(std::nearbyint(x));
  }
};

using Int8 = SymmetricInt<127>;
using Int4 = SymmetricInt<7>;

}  // namespace octavo
