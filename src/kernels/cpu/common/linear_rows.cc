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

OCTAVO_ROW(avx512, kLinearFma, kLinearFmaOps, "avx512/fma", Isa::kAvx512, accepts_fma)
#undef OCTAVO_ROW
