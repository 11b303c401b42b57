// Panels: how weights lie in memory for the fast linear kernels (docs/kernels.md), and how they get there.
#pragma once

#include "kernels/cpu/common/linear_task.h"
#include "kernels/linear.h"

namespace octavo {

WeightKind weight_kind(const TensorFormat& format);
// Columns of one line.
int line_cols(WeightKind kind);
int64_t num_panels(int64_t rows);
// Bytes of one panel, a multiple of 64.
size_t panel_bytes(WeightKind kind, int64_t cols);
// Columns from one weight scale to the next; 0 where weights are not grouped along K.
int64_t weight_group_cols(const LinearKey& key);
// Groups along K of the weights; 0 likewise.
int64_t num_weight_groups(const LinearKey& key);

// What lies in PackedLinear::groups: [panel][group], entries of `bytes` (LinearTask::groups).
struct GroupLayout {
  ScaleKind kind;
  int64_t scale_bytes, bytes;
};
GroupLayout group_layout(const TensorFormat& weight);

// PackedLinear::scales: one per row, padded to whole panels: its scale, the outer scale, 1 where there is none of
// either; NaN where the row holds a NaN code or a group whose scale is NaN, so that decoders need not keep NaN.
inline float* row_scales(PackedLinear& packed) {
  return packed.scales.data();
}
inline const float* row_scales(const PackedLinear& packed) {
  return packed.scales.data();
}

// The entries of one panel; `row` counts in the slab. Row scales that a group poisons become NaN.
void pack_groups(PackedLinear& packed, int64_t row0, const MatrixView& slab, int64_t row);

// `accepts` of the rows.
std::string accepts_fma(const LinearKey& key);       // F32, BF16, E4M3 on both sides; INT8, INT4, E2M1 weights
std::string accepts_bf16_dot(const LinearKey& key);  // the same without F32
std::string accepts_int8(const LinearKey& key);      // INT8 on both sides
// `allocate` and `pack` of all rows.
PackedLinear allocate_panels(const LinearKey& key);
void pack_panels(PackedLinear& packed, int64_t row0, const MatrixView& slab);

}  // namespace octavo
