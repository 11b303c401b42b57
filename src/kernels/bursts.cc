#include "kernels/bursts.h"

#include <algorithm>
#include <chrono>

namespace octavo {
namespace {

// A loop around twelve instructions on registers 0-11 with sources 12 and 13; all hold zeros. Text, because this file
// is built for the smallest machine. Clobbering an xmm register covers the whole zmm register.
#define OCTAVO_TWELVE(op, r)                                                                                        \
  op " %%" r "12,%%" r "13,%%" r "0\n" op " %%" r "12,%%" r "13,%%" r "1\n" op " %%" r "12,%%" r "13,%%" r "2\n" op \
     " %%" r "12,%%" r "13,%%" r "3\n" op " %%" r "12,%%" r "13,%%" r "4\n" op " %%" r "12,%%" r "13,%%" r "5\n" op \
     " %%" r "12,%%" r "13,%%" r "6\n" op " %%" r "12,%%" r "13,%%" r "7\n" op " %%" r "12,%%" r "13,%%" r "8\n" op \
     " %%" r "12,%%" r "13,%%" r "9\n" op " %%" r "12,%%" r "13,%%" r "10\n" op " %%" r "12,%%" r "13,%%" r "11\n"

#define OCTAVO_BURST(op, r)                                                                                     \
  asm volatile("vzeroall\n1:\n" OCTAVO_TWELVE(op, r) "dec %0\njnz 1b\nvzeroupper\n"                             \
               : "+r"(loops)                                                                                    \
               :                                                                                                \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                 "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

int64_t multiply_adds_per_instruction(BurstKind kind) {
  switch (kind) {
    case BurstKind::kFmaAvx2:
      return 8;
    case BurstKind::kFmaAvx512:
      return 16;
    case BurstKind::kBf16Dot:
      return 32;
    case BurstKind::kInt8Dot:
      return 64;
  }
  return 0;
}

}  // namespace

int64_t run_burst(BurstKind kind, int64_t multiply_adds) {
  const int64_t per_loop = 12 * multiply_adds_per_instruction(kind);
  int64_t loops = std::max<int64_t>(1, multiply_adds / per_loop);
  const int64_t done = loops * per_loop;
  switch (kind) {
    case BurstKind::kFmaAvx2:
      OCTAVO_BURST("vfmadd231ps", "ymm");
      break;
    case BurstKind::kFmaAvx512:
      OCTAVO_BURST("vfmadd231ps", "zmm");
      break;
    case BurstKind::kBf16Dot:
      OCTAVO_BURST("vdpbf16ps", "zmm");
      break;
    case BurstKind::kInt8Dot:
      OCTAVO_BURST("vpdpbusd", "zmm");
      break;
  }
  return done;
}

double burst_rate(BurstKind kind) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int repeat = 0; repeat < 6; ++repeat) {  // the first ones also wake the wide units
    const auto start = Clock::now();
    const int64_t done = run_burst(kind, multiply_adds_per_instruction(kind) * 400'000);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(done) / seconds * 1e-9);
  }
  return best;
}

}  // namespace octavo
