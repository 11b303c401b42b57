// The end of a linear layer: from the sums of a panel to y (kernels/linear.h).
#pragma once

#include "kernels/cpu/common/linear_task.h"
#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

OCTAVO_INLINE void finish_sixteen(const LinearTask& task, int column, float scale, const float* sums, float* y) {
  F out = load(sums) * (load(task.row_scales + column) * splat(scale));
  if (task.bias != nullptr) out = out + load(task.bias + column);
  if (task.accumulate) out = out + load(y);
  store(y, out);
}

// sums: [rows][32] of one panel of the task.
[[maybe_unused]] void finish_panel(const LinearTask& task, int panel, const float* sums) {
  const int column = panel * kPanelRows;
  const int64_t left = task.num_outputs - column;
  for (int m = 0; m < task.rows; ++m, sums += kPanelRows) {
    float* y = task.y + m * task.y_stride + column;
    if (left >= kPanelRows) {
      finish_sixteen(task, column, task.x_scales[m], sums, y);
      finish_sixteen(task, column + 16, task.x_scales[m], sums + 16, y + 16);
      continue;
    }
    alignas(64) float whole[kPanelRows] = {};  // y has no room for a whole panel
    for (int64_t i = 0; i < left; ++i) whole[i] = y[i];
    finish_sixteen(task, column, task.x_scales[m], sums, whole);
    finish_sixteen(task, column + 16, task.x_scales[m], sums + 16, whole + 16);
    for (int64_t i = 0; i < left; ++i) y[i] = whole[i];
  }
}

}  // namespace
}  // namespace octavo
