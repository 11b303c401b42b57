// Outlier channels of a linear layer: the same on every instruction set, as they are about a hundredth of the work.
#pragma once

#include "kernels/linear.h"

namespace octavo {

// y = fma(x_out[m, i], w_out[n, i], y) over i = 0, 1, 2, ... for rows [row, row + rows) and the outputs of panels
// [panel, panel + panels).
void add_outliers(const LinearCall& call, int64_t row, int64_t rows, int64_t panel, int64_t panels);

}  // namespace octavo
