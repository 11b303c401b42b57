// Linear layers by FP32 FMA for AVX2.
#include "kernels/cpu/avx2/e4m3_lines.h"

namespace octavo {
namespace {
// Sixteen registers: 12 sums of 6 rows x 16 columns, two of weights.
constexpr int kFmaDirectRows = 2, kFmaBlockRows = 6, kFmaTileVectors = 1;
constexpr int kFmaDirectLimit = 2;
constexpr bool kFmaDecodeAhead = false;  // needs registers
constexpr int fma_panels_at_once(int rows) {
  return rows == 1 ? 2 : 1;
}
}  // namespace
}  // namespace octavo

#include "kernels/cpu/common/linear_fma_simd.h"

namespace octavo::avx2 {
extern const LinearOps kLinearFmaOps;
const LinearOps kLinearFmaOps = kFmaOps;
}  // namespace octavo::avx2
