// Activation codes turned into what the products take (StepKind), in AVX2.
#pragma once

#include "kernels/activation.h"
#include "kernels/cpu/common/linear_task.h"

namespace octavo {

struct StepShape {
  int cols, bytes;  // of one step
};
StepShape step_shape(StepKind kind);
// Bytes of a row of `cols` columns: whole steps, with room for the 16 columns at a time that widen_steps() writes.
int64_t step_row_bytes(StepKind kind, int64_t cols);

// Columns [col0, col0 + cols) of a row of x; col0 is a multiple of 16. Columns from `cols` to the next multiple of 16
// come out as the zeros that lie behind a row, or are columns of the row that nobody uses.
void widen_steps(StepKind kind, const Activation& x, int64_t row, int64_t col0, int64_t cols, std::byte* out);

// Rows [row, row + rows) of x as [step][rows], rows <= 16, steps of 4 bytes. `memory`: interleave_memory() bytes.
void interleave_steps(StepKind kind, const Activation& x, int64_t row, int rows, std::byte* memory, std::byte* out);
size_t interleave_memory();

}  // namespace octavo
