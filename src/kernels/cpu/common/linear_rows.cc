// The rows of linear.inc that run on linear_driver.cc: name, instruction set, what they take, how they pack and run.
#include "kernels/cpu/common/linear_driver.h"
#include "kernels/cpu/common/linear_panels.h"

// OCTAVO_ROW(namespace, variable, operations, name, isa, accepts)
#define OCTAVO_ROW(space, variable, operations, name, isa, accepts)                            \
  namespace octavo::space {                                                                    \
  extern const LinearOps operations;                                                           \
  extern const LinearKernel variable;                                                          \
  const LinearKernel variable{name,                                                            \
                              isa,                                                             \
                              accepts,                                                         \
                              allocate_panels,                                                 \
                              pack_panels,                                                     \
                              [](const LinearCall& call, ThreadPool& pool, Scratch& scratch) { \
                                run_linear(operations, call, pool, scratch);                   \
                              }};                                                              \
  }

OCTAVO_ROW(avx2, kLinearFma, kLinearFmaOps, "avx2/fma", Isa::kAvx2, accepts_fma)
OCTAVO_ROW(avx2, kLinearInt8, kLinearInt8Ops, "avx2/int8", Isa::kAvx2, accepts_int8)
OCTAVO_ROW(avx512, kLinearFma, kLinearFmaOps, "avx512/fma", Isa::kAvx512, accepts_fma)
OCTAVO_ROW(avx512, kLinearInt8, kLinearInt8Ops, "avx512/vnni", Isa::kAvx512, accepts_int8)
OCTAVO_ROW(avx512_bf16, kLinear, kLinearOps, "avx512_bf16/dot", Isa::kAvx512Bf16, accepts_bf16_dot)
#undef OCTAVO_ROW
