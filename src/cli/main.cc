// The entry point, and the one check that must run before any code built for AVX2.
#include <cpuid.h>

#include <cstdio>
#include <cstdlib>

namespace octavo {
int run_app(int argc, char** argv);
}

namespace {

// This file is compiled for plain x86-64; static objects of the other files are built for AVX2 and come later.
__attribute__((constructor(101))) void check_cpu() {
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;  // clang 14 has no name for it
  if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return;
  std::fputs("octavo: this processor lacks AVX2, FMA, F16C or BMI2 (x86-64-v3), which Octavo needs\n", stderr);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  return octavo::run_app(argc, argv);
}
