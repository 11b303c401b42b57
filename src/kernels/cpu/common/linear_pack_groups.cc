// What packed weights have beside the codes of their groups along K: scales as narrow as they were stored, offsets.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/common/linear_panels.h"
#include "numerics/e8m0.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Writes a scale as its type; scales come from that type, so nothing is rounded. NaN codes are poisoned rows.
void store_scale(ScaleKind kind, float scale, std::byte* to) {
  const auto put = [&](auto code, float value) {
    OCTAVO_CHECK(value == scale || is_nan(scale), "a scale of {} among narrower ones", scale);
    std::memcpy(to, &code, sizeof(code));
  };
  switch (kind) {
    case ScaleKind::kPanel:
    case ScaleKind::kF32:
      std::memcpy(to, &scale, sizeof(scale));
      return;
    case ScaleKind::kF16: {
      const auto code = static_cast<uint16_t>(F16::encode(scale, false));
      return put(code, F16::decode(code));
    }
    case ScaleKind::kBf16: {
      const auto code = static_cast<uint16_t>(Bf16::encode(scale, false));
      return put(code, Bf16::decode(code));
    }
    case ScaleKind::kE8m0: {
      const uint8_t code = E8m0::encode_round_up(scale);
      return put(code, E8m0::decode(code));
    }
    case ScaleKind::kE4m3: {
      const auto code = static_cast<uint8_t>(E4m3::encode(scale));
      return put(code, E4m3::decode(code));
    }
  }
}

ScaleKind scale_kind(const TensorFormat& weight) {
  if (weight.block_rows != 1) return ScaleKind::kPanel;
  switch (weight.scale) {
    case ElementType::kF16:
      return ScaleKind::kF16;
    case ElementType::kBf16:
      return ScaleKind::kBf16;
    case ElementType::kE8m0:
      return ScaleKind::kE8m0;
    case ElementType::kE4m3:
      return ScaleKind::kE4m3;
    default:
      return ScaleKind::kF32;
  }
}

}  // namespace

GroupLayout group_layout(const TensorFormat& weight) {
  const ScaleKind kind = scale_kind(weight);
  if (kind == ScaleKind::kPanel) return {kind, 4, 4};
  const int64_t scales = kPanelRows * element_bits(kind == ScaleKind::kF32 ? ElementType::kF32 : weight.scale) / 8;
  return {kind, scales, scales + (weight.zero_points ? kPanelRows : 0)};
}

void pack_groups(PackedLinear& packed, int64_t row0, const MatrixView& slab, int64_t row) {
  const TensorFormat& format = slab.format;
  const GroupLayout layout = group_layout(format);
  const int64_t groups = num_weight_groups(packed.key), scale_bytes = layout.scale_bytes / kPanelRows;
  std::byte* entries = packed.groups.data() + (row0 + row) / kPanelRows * groups * layout.bytes;
  const int64_t rows = layout.kind == ScaleKind::kPanel ? 1 : std::min<int64_t>(kPanelRows, slab.rows - row);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < groups; ++g) {
      const auto index = slab.grid_index(row + r, g * format.block_cols);
      const float scale = slab.scales[index];
      std::byte* entry = entries + g * layout.bytes;
      store_scale(layout.kind, scale, entry + r * scale_bytes);
      if (is_nan(scale) && layout.kind != ScaleKind::kPanel) row_scales(packed)[row0 + row + r] = kNan;
      if (!format.zero_points) continue;
      const float zero = slab.zeros[index];
      OCTAVO_CHECK(zero >= -8 && zero <= 8, "a zero point of {} for four bits", zero);
      entry[layout.scale_bytes + r] = static_cast<std::byte>(8 - static_cast<int>(zero));
    }
}

}  // namespace octavo
