// Groups along K: their scales in registers, and how the chain of a group joins the total (kernels/linear.h).
#pragma once

#include "kernels/cpu/common/linear_task.h"
#include "kernels/cpu/common/simd.h"

namespace octavo {
namespace {

constexpr int kEntryPrefetchBytes = 512;

// What stands beside the codes of chain `group` of a panel; null where weights are not grouped.
OCTAVO_INLINE const std::byte* group_entry(const LinearTask& task, int panel, int64_t group) {
  if (task.groups == nullptr) return nullptr;
  const int64_t entry = task.chains_per_entry == 1 ? group : group / task.chains_per_entry;
  return task.groups + panel * task.groups_stride + entry * task.entry_bytes;
}

// Scales of the rows of a panel: 0-15, 16-31.
OCTAVO_INLINE void load_scales(ScaleKind kind, const std::byte* entry, F (&scales)[2]) {
  switch (kind) {
    case ScaleKind::kPanel:
      scales[0] = scales[1] = splat(*reinterpret_cast<const float*>(entry));
      return;
    case ScaleKind::kF32:
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) scales[v] = load(reinterpret_cast<const float*>(entry) + 16 * v);
      return;
    case ScaleKind::kF16:
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) scales[v] = load_f16(entry + 32 * v);
      return;
    case ScaleKind::kBf16:
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) scales[v] = as_floats(shift_left<16>(load_halves(entry + 32 * v)));
      return;
    case ScaleKind::kE8m0:  // an exponent; code 0 is the subnormal 2^-127
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        scales[v] = as_floats(max(shift_left<23>(load_bytes(entry + 16 * v)), splat_int(0x00400000)));
      return;
    case ScaleKind::kE4m3:
      break;
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) scales[v] = load_e4m3(entry + 16 * v);
}

// total = fma(chain, w_scale x x_scale, total) for each row of x and rows 16 (v0 + v).. of the panel. totals:
// [kRows][32].
template <int kRows, int kVectors>
OCTAVO_INLINE void add_group(const LinearTask& task, int panel, int64_t group, const F (&chains)[kRows][kVectors],
                             int v0, float* totals) {
  F w[2] = {splat(1.0f), splat(1.0f)};
  if (const std::byte* entry = group_entry(task, panel, group)) {
    _mm_prefetch(reinterpret_cast<const char*>(entry) + kEntryPrefetchBytes, _MM_HINT_T0);
    load_scales(task.scale_kind, entry, w);
  }
  totals += 16 * v0;
  if (task.x_group_scales == nullptr) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        float* to = totals + m * kPanelRows + 16 * v;
        store(to, fma(chains[m][v], w[v0 + v], load(to)));
      }
    return;
  }
  const float* x = task.x_group_scales + (task.chains_per_x_scale == 1 ? group : group / task.chains_per_x_scale);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    const F value = splat(x[m * task.x_group_stride]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = totals + m * kPanelRows + 16 * v;
      store(to, fma(chains[m][v], w[v0 + v] * value, load(to)));
    }
  }
}

// Before the first group.
OCTAVO_INLINE void clear_totals(float* totals, int count) {
  for (int i = 0; i < count; i += 16) store(totals + i, zero());
}

}  // namespace
}  // namespace octavo
