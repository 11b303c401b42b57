// Short runs of one arithmetic instruction on registers only: what a core can do at most, for isa.cc and roofline.cc.
#pragma once

#include <cstdint>

namespace octavo {

enum class BurstKind : uint8_t { kFmaAvx2, kFmaAvx512, kBf16Dot, kInt8Dot };

// Executes about `multiply_adds` multiply-adds on twelve independent accumulators and returns how many it was. The
// machine must have the instruction.
int64_t run_burst(BurstKind kind, int64_t multiply_adds);

// The best of a few bursts on the calling thread, in 10^9 multiply-adds per second; takes under two milliseconds.
double burst_rate(BurstKind kind);

}  // namespace octavo
