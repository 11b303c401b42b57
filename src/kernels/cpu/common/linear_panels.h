// Panels: how weights lie in memory for the fast linear kernels (docs/kernels.md), and how they get there.
#pragma once

#include "kernels/cpu/common/linear_task.h"
#include "kernels/linear.h"

namespace octavo {

WeightKind weight_kind(ElementType element);
int64_t num_panels(int64_t rows);
// Bytes of one panel, a multiple of 64.
size_t panel_bytes(WeightKind kind, int64_t cols);
// Columns from one weight scale to the next; 0 where weights are not grouped along K.
int64_t weight_group_cols(const LinearKey& key);
// Groups along K of the weights; 0 likewise.
int64_t num_weight_groups(const LinearKey& key);

// The scales of a packed layer: one per row (1 where rows have none; NaN where the row holds a NaN code, so that
// decoders need not keep NaN), padded to whole panels; behind them, for grouped weights, [panel][group].
inline float* row_scales(PackedLinear& packed) {
  return packed.scales.data();
}
inline const float* row_scales(const PackedLinear& packed) {
  return packed.scales.data();
}
inline float* group_scales(PackedLinear& packed) {
  return packed.scales.data() + num_panels(packed.key.rows) * kPanelRows;
}
inline const float* group_scales(const PackedLinear& packed) {
  return packed.scales.data() + num_panels(packed.key.rows) * kPanelRows;
}

// `accepts` of the rows.
std::string accepts_fma(const LinearKey& key);       // F32, BF16, E4M3 on both sides
std::string accepts_bf16_dot(const LinearKey& key);  // BF16, E4M3 on both sides
std::string accepts_int8(const LinearKey& key);      // INT8 on both sides
// `allocate` and `pack` of all rows.
PackedLinear allocate_panels(const LinearKey& key);
void pack_panels(PackedLinear& packed, int64_t row0, const MatrixView& slab);

}  // namespace octavo
