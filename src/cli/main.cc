// The entry point, and the one check that must run before any code built for AVX2.
#include <cstdio>
#include <cstdlib>

namespace octavo {
int run_app(int argc, char** argv);
}

namespace {

// This file is compiled for plain x86-64; static objects of the other files are built for AVX2 and come later.
__attribute__((constructor(101))) void check_cpu() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2"))
    return;
  std::fputs("octavo: this processor lacks AVX2, FMA, F16C or BMI2 (x86-64-v3), which Octavo needs\n", stderr);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  return octavo::run_app(argc, argv);
}
