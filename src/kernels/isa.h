// Instruction sets: what this machine has, how fast its candidates are, and which one was chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace octavo {

// In order of what they need. A row of a lower level always runs on a machine of a higher one.
enum class Isa : uint8_t { kReference, kAvx2, kAvx512, kAvx512Bf16 };
std::string_view isa_name(Isa isa);  // "reference", "avx2", "avx512", "avx512_bf16": the values of --isa
Result<Isa> isa_from_name(std::string_view name);

struct CpuFeatures {
  std::string model;  // "Intel(R) Xeon(R) Processor"
  bool avx2 = false, fma = false, f16c = false;
  bool avx512 = false;       // F, BW, DQ, VL, CD: x86-64-v4
  bool avx512_vbmi = false;  // vpermi2b
  bool avx512_vnni = false, avx512_bf16 = false;
  bool avx_vnni = false, amx = false;  // reported, not used
};
const CpuFeatures& cpu_features();
// Whether every instruction that rows of this level use is there (kAvx512 includes VBMI and VNNI: Ice Lake, Zen 4 and
// up).
bool isa_available(Isa isa);

// Rates of one core in 10^9 multiply-adds per second, measured once per process in a few milliseconds.
struct InstructionRates {
  double fma_avx2 = 0, fma_avx512 = 0, bf16_dot = 0, int8_dot = 0;  // 0: not available
};
const InstructionRates& instruction_rates();

// The level that serves floating-point plans: the fastest by measured rate, not by name (on Intel without AMX the BF16
// dot product runs at half the rate of FP32 FMA, on Zen 5 at twice). One level serves every M, so that the bits do not
// depend on the batch.
Isa best_isa();

}  // namespace octavo
