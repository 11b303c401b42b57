#include "kernels/isa.h"

#include <cpuid.h>

#include <cstring>

#include "kernels/bursts.h"

namespace octavo {
namespace {

constexpr std::string_view kNames[] = {"reference", "avx2", "avx512", "avx512_bf16"};

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros where the CPU has no such leaf.
Leaf cpuid_leaf(unsigned leaf, unsigned subleaf) {
  Leaf out;
  __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);
  return out;
}

// Which register files the operating system saves.
uint64_t enabled_states() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

std::string brand() {
  char text[49] = {};
  if (cpuid_leaf(0x80000000u, 0).eax < 0x80000004u) return "unknown";
  for (unsigned i = 0; i < 3; ++i) {
    const Leaf part = cpuid_leaf(0x80000002u + i, 0);
    std::memcpy(text + 16 * i, &part, sizeof part);
  }
  std::string name(text);
  const size_t first = name.find_first_not_of(' '), last = name.find_last_not_of(' ');
  return first == std::string::npos ? "unknown" : name.substr(first, last - first + 1);
}

bool bit(unsigned word, int index) {
  return (word >> index & 1u) != 0;
}

CpuFeatures detect() {
  CpuFeatures out;
  out.model = brand();
  const Leaf one = cpuid_leaf(1, 0), seven = cpuid_leaf(7, 0);
  const Leaf seven_one = seven.eax >= 1 ? cpuid_leaf(7, 1) : Leaf{};
  if (!bit(one.ecx, 27)) return out;  // no OSXSAVE: no vector registers beyond SSE
  const uint64_t states = enabled_states();
  const bool ymm = (states & 0x6) == 0x6, zmm = (states & 0xE6) == 0xE6, tiles = (states & 0x60000) == 0x60000;
  out.avx2 = ymm && bit(one.ecx, 28) && bit(seven.ebx, 5);
  out.fma = ymm && bit(one.ecx, 12);
  out.f16c = ymm && bit(one.ecx, 29);
  out.avx_vnni = ymm && bit(seven_one.eax, 4);
  out.avx512 = zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 28) && bit(seven.ebx, 30) &&
               bit(seven.ebx, 31);  // F, DQ, CD, BW, VL
  out.avx512_vbmi = out.avx512 && bit(seven.ecx, 1);
  out.avx512_vnni = out.avx512 && bit(seven.ecx, 11);
  out.avx512_bf16 = out.avx512 && bit(seven_one.eax, 5);
  out.amx = tiles && bit(seven.edx, 24);
  return out;
}

InstructionRates measure() {
  InstructionRates rates;
  if (isa_available(Isa::kAvx2)) rates.fma_avx2 = burst_rate(BurstKind::kFmaAvx2);
  if (isa_available(Isa::kAvx512)) {
    rates.fma_avx512 = burst_rate(BurstKind::kFmaAvx512);
    rates.int8_dot = burst_rate(BurstKind::kInt8Dot);
  }
  if (isa_available(Isa::kAvx512Bf16)) rates.bf16_dot = burst_rate(BurstKind::kBf16Dot);
  return rates;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  return kNames[static_cast<int>(isa)];
}

Result<Isa> isa_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<Isa>(i);
  return fail({.what = "unknown instruction set",
               .where = "--isa",
               .found = std::string(name),
               .expected = "reference, avx2, avx512 or avx512_bf16",
               .remedy = "leave it out to use the fastest"});
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures kFeatures = detect();
  return kFeatures;
}

bool isa_available(Isa isa) {
  const CpuFeatures& cpu = cpu_features();
  const bool avx2 = cpu.avx2 && cpu.fma && cpu.f16c;
  const bool avx512 = avx2 && cpu.avx512 && cpu.avx512_vbmi && cpu.avx512_vnni;
  switch (isa) {
    case Isa::kReference:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && cpu.avx512_bf16;
  }
  return false;
}

const InstructionRates& instruction_rates() {
  static const InstructionRates kRates = measure();
  return kRates;
}

Isa best_isa() {
  if (!isa_available(Isa::kAvx2)) return Isa::kReference;
  if (!isa_available(Isa::kAvx512)) return Isa::kAvx2;
  const InstructionRates& rates = instruction_rates();
  // Equal rates (a core that splits wide instructions) still leave AVX-512 more registers and better decoders, and a
  // tie with the BF16 dot product keeps the exact products of FMA.
  if (rates.bf16_dot > 1.2 * rates.fma_avx512) return Isa::kAvx512Bf16;
  return rates.fma_avx512 > 0.9 * rates.fma_avx2 ? Isa::kAvx512 : Isa::kAvx2;
}

}  // namespace octavo
