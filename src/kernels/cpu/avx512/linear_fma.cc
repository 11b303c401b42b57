// Linear layers by FP32 FMA for AVX-512.
#include "kernels/cpu/avx512/e4m3_lines.h"

namespace octavo {
namespace {
// 32 registers: 24 sums of 12 rows x 32 columns, two of weights.
constexpr int kFmaDirectRows = 12, kFmaBlockRows = 12, kFmaTileVectors = 2;
constexpr bool kFmaDecodeAhead = true;
// Two calls of 12 rows that decode a panel twice still beat decoding it to a tile once.
constexpr int kFmaDirectLimit = 24;
// Eight sums in flight hide the latency of the FMA; more panels also keep more lines of memory on their way.
constexpr int fma_panels_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}
}  // namespace
}  // namespace octavo

#include "kernels/cpu/common/linear_fma_simd.h"

namespace octavo::avx512 {
extern const LinearOps kLinearFmaOps;
const LinearOps kLinearFmaOps = kFmaOps;
}  // namespace octavo::avx512
