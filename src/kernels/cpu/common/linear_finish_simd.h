// What the linear kernels share: panels side by side, prefetch, and the end: from the sums of a panel to y
// (kernels/linear.h).
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

// Bytes from the line at hand to the one to fetch, for one of `panels` panels side by side of which `left` bytes are
// left: `distance`, and past the panel's end into the next `panels` panels.
OCTAVO_INLINE size_t fetch_ahead(size_t distance, int panels, size_t panel_bytes, int64_t left) {
  return distance + (left > static_cast<int64_t>(distance) ? 0 : static_cast<size_t>(panels - 1) * panel_bytes);
}

// Bytes to the end of a panel from `offset` bytes into this task's columns of it.
OCTAVO_INLINE int64_t bytes_left(const LinearTask& task, int64_t offset) {
  return static_cast<int64_t>(task.panel_bytes) - offset;
}

template <class Panels, int kPanels>
OCTAVO_INLINE void run_panels(const LinearTask& task, int panel, int panels) {
  if constexpr (kPanels > 0) {
    if (panels == kPanels) return Panels::template run<kPanels>(task, panel);
    run_panels<Panels, kPanels - 1>(task, panel, panels);
  }
}

// Calls Panels::run<n>(task, first panel) for all panels of the task, in near-equal groups of at most kMost.
template <class Panels, int kMost>
OCTAVO_INLINE void side_by_side(const LinearTask& task) {
  const int groups = (task.num_panels + kMost - 1) / kMost;
  for (int group = 0, panel = 0; group < groups; ++group) {
    const int end = static_cast<int>(static_cast<int64_t>(task.num_panels) * (group + 1) / groups);
    run_panels<Panels, kMost>(task, panel, end - panel);
    panel = end;
  }
}

}  // namespace
}  // namespace octavo
