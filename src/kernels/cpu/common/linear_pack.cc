// Packing of weights into panels: 32 rows at a time, transposed in vector registers.
#include <algorithm>
#include <cstring>
#include <limits>

#include "formats/paged_kv.h"
#include "kernels/cpu/common/linear_panels.h"
#include "kernels/cpu/common/transpose.h"

namespace octavo {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The rows of one panel in the slab.
struct SourceRows {
  const std::byte* first;
  int64_t row_bytes;
  int count;  // 1..32

  const std::byte* row(int r) const { return first + r * row_bytes; }
};

// Unit: what moves as a whole: 4 bytes (a pair of BF16, four INT8, one FP32) or, for 8-bit floats, 2 bytes (a pair).
// Where unit i of row r goes.
size_t dword_offset(int64_t i, int r) {
  return static_cast<size_t>(i) * 4 * kPanelRows + static_cast<size_t>(r) * 4;
}
size_t word_offset(int64_t i, int r) {
  return static_cast<size_t>(i) * 2 * kPanelRows + static_cast<size_t>(panel_offset_8bit(r, 0));
}

// Units [from, to_bytes / unit) of every row, a partial last one included, one by one.
template <size_t kUnit>
void pack_units(const SourceRows& source, int64_t from, std::byte* panel) {
  for (int r = 0; r < source.count; ++r)
    for (int64_t i = from; i * static_cast<int64_t>(kUnit) < source.row_bytes; ++i) {
      const int64_t left = source.row_bytes - i * static_cast<int64_t>(kUnit);
      std::memcpy(panel + (kUnit == 4 ? dword_offset(i, r) : word_offset(i, r)),
                  source.row(r) + i * static_cast<int64_t>(kUnit), static_cast<size_t>(std::min<int64_t>(left, kUnit)));
    }
}

// What happens to 32-bit units on their way into a panel.
struct Unchanged {
  __m256i operator()(__m256i units) const { return units; }
};

// Eight nibbles of a row: columns 2 p to bit 4 p, columns 2 p + 1 to bit 16 + 4 p. With zero points, code + 8.
struct SplitNibbles {
  __m256i flips;

  explicit SplitNibbles(bool offset) : flips(_mm256_set1_epi32(offset ? static_cast<int>(0x88888888u) : 0)) {}
  // The low nibbles of the four bytes, side by side.
  static __m256i gather(__m256i x) {
    x = _mm256_and_si256(x, _mm256_set1_epi32(0x0F0F0F0F));
    x = _mm256_and_si256(_mm256_or_si256(x, _mm256_srli_epi32(x, 4)), _mm256_set1_epi32(0x00FF00FF));
    return _mm256_and_si256(_mm256_or_si256(x, _mm256_srli_epi32(x, 8)), _mm256_set1_epi32(0xFFFF));
  }
  __m256i operator()(__m256i units) const {
    const __m256i flipped = _mm256_xor_si256(units, flips);
    return _mm256_or_si256(gather(flipped), _mm256_slli_epi32(gather(_mm256_srli_epi32(flipped, 4)), 16));
  }
};

template <class Change>
void pack_dwords(const SourceRows& source, const Change& change, std::byte* panel) {
  const int64_t whole = source.count == kPanelRows ? source.row_bytes / 32 * 8 : 0;
  for (int64_t i = 0; i < whole; i += 8)
    for (int r = 0; r < kPanelRows; r += 8) {
      __m256i rows[8];
      for (int j = 0; j < 8; ++j) rows[j] = load_vector(source.row(r + j) + i * 4);
      transpose_dwords(rows);
      for (int j = 0; j < 8; ++j) store_vector(panel + dword_offset(i + j, r), change(rows[j]));
    }
  pack_units<4>(source, whole, panel);
  const int64_t end = (source.row_bytes + 3) / 4;
  for (std::byte* p = panel + dword_offset(whole, 0); p != panel + dword_offset(end, 0); p += 32)
    store_vector(p, change(load_vector(p)));
}

void pack_words(const SourceRows& source, std::byte* panel) {
  const int64_t whole = source.count == kPanelRows ? source.row_bytes / 16 * 8 : 0;
  for (int64_t i = 0; i < whole; i += 8)
    for (int r = 0; r < 16; r += 8) {  // lanes of a line: rows r..r+3 with 16+r.., and r+4..r+7 with 20+r..
      __m256i rows[8];
      for (int j = 0; j < 4; ++j) {
        rows[j] = load_halves(source.row(r + j) + i * 2, source.row(r + 4 + j) + i * 2);
        rows[j + 4] = load_halves(source.row(16 + r + j) + i * 2, source.row(20 + r + j) + i * 2);
      }
      transpose_words(rows);
      for (int j = 0; j < 8; ++j) store_vector(panel + word_offset(i + j, r), rows[j]);
    }
  pack_units<2>(source, whole, panel);
}

bool holds_e4m3_nan(const std::byte* codes, int64_t count) {
  const __m256i magnitude = _mm256_set1_epi8(0x7F);
  __m256i found = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_and_si256(load_vector(codes + i), magnitude), magnitude));
  bool any = _mm256_testz_si256(found, found) == 0;
  for (; i < count; ++i) any = any || (codes[i] & std::byte{0x7F}) == std::byte{0x7F};
  return any;
}

int32_t sum_of_int8(const std::byte* codes, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<int8_t>(codes[i]);
  return sum;
}

// Everything of one panel but its codes. `row` counts in the slab.
void pack_panel_scales(PackedLinear& packed, int64_t row0, const MatrixView& slab, int64_t row, WeightKind kind,
                       const SourceRows& source) {
  const bool grouped = num_weight_groups(packed.key) > 0;
  const float whole = slab.format.outer() ? slab.outer.value() : 1.0f;
  for (int r = 0; r < source.count; ++r) {
    float scale = grouped ? whole : slab.scale_at(row + r, 0);
    if (kind == WeightKind::kE4m3 && holds_e4m3_nan(source.row(r), slab.cols)) scale = kNan;
    row_scales(packed)[row0 + row + r] = scale;
    if (kind == WeightKind::kInt8)
      packed.corrections[static_cast<size_t>(row0 + row + r)] = -128 * sum_of_int8(source.row(r), slab.cols);
  }
  if (grouped) pack_groups(packed, row0, slab, row);
}

}  // namespace

WeightKind weight_kind(const TensorFormat& format) {
  switch (format.element) {
    case ElementType::kF32:
      return WeightKind::kF32;
    case ElementType::kBf16:
      return WeightKind::kBf16;
    case ElementType::kE4m3:
      return WeightKind::kE4m3;
    case ElementType::kInt8:
      return WeightKind::kInt8;
    case ElementType::kInt4:
    case ElementType::kE2m1:
      return format.zero_points ? WeightKind::kOffsetNibbles : WeightKind::kNibbles;
    default:
      OCTAVO_CHECK(false, "no panels of {}", element_name(format.element));
  }
}

int line_cols(WeightKind kind) {
  switch (kind) {
    case WeightKind::kF32:
    case WeightKind::kBf16:
    case WeightKind::kE4m3:
      return 2;
    case WeightKind::kInt8:
      return 4;
    case WeightKind::kNibbles:
    case WeightKind::kOffsetNibbles:
      return 8;
  }
  return 0;
}

int64_t num_panels(int64_t rows) {
  return (rows + kPanelRows - 1) / kPanelRows;
}

size_t panel_bytes(WeightKind kind, int64_t cols) {
  const auto lines = static_cast<size_t>((cols + line_cols(kind) - 1) / line_cols(kind));
  switch (kind) {
    case WeightKind::kF32:
      return lines * 8 * kPanelRows;
    case WeightKind::kE4m3:
      return lines * 2 * kPanelRows;
    default:
      return lines * 4 * kPanelRows;
  }
}

int64_t weight_group_cols(const LinearKey& key) {
  return key.weight.granularity == Granularity::kBlock ? key.weight.block_cols : 0;
}

int64_t num_weight_groups(const LinearKey& key) {
  return weight_group_cols(key) == 0 ? 0 : key.weight.scale_cols(key.cols);
}

PackedLinear allocate_panels(const LinearKey& key) {
  const WeightKind kind = weight_kind(key.weight);
  const int64_t panels = num_panels(key.rows);
  PackedLinear packed{.key = key};
  packed.panels = AlignedBytes::beside_others(static_cast<size_t>(panels) * panel_bytes(kind, key.cols));
  packed.scales = AlignedArray<float>(static_cast<size_t>(panels * kPanelRows));
  if (num_weight_groups(key) > 0)
    packed.groups = AlignedBytes::beside_others(
        static_cast<size_t>(panels * num_weight_groups(key) * group_layout(key.weight).bytes));
  if (kind == WeightKind::kInt8) packed.corrections = AlignedArray<int32_t>(static_cast<size_t>(panels * kPanelRows));
  return packed;
}

void pack_panels(PackedLinear& packed, int64_t row0, const MatrixView& slab) {
  OCTAVO_CHECK(row0 % kPanelRows == 0 && row0 + slab.rows <= packed.key.rows && slab.cols == packed.key.cols,
               "slab of {}x{} at row {} of {}x{}", slab.rows, slab.cols, row0, packed.key.rows, packed.key.cols);
  OCTAVO_CHECK(slab.format == packed.key.weight, "slab of {}, layer of {}", slab.format.describe(),
               packed.key.weight.describe());
  const WeightKind kind = weight_kind(slab.format);
  const size_t bytes = panel_bytes(kind, slab.cols);
  const int64_t row_bytes = slab.format.element_bytes(1, slab.cols);
  for (int64_t row = 0; row < slab.rows; row += kPanelRows) {
    const SourceRows source{.first = slab.codes + row * row_bytes,
                            .row_bytes = row_bytes,
                            .count = static_cast<int>(std::min<int64_t>(kPanelRows, slab.rows - row))};
    pack_panel_scales(packed, row0, slab, row, kind, source);
    std::byte* panel = packed.panels.data() + static_cast<size_t>((row0 + row) / kPanelRows) * bytes;
    if (kind == WeightKind::kE4m3)
      pack_words(source, panel);
    else if (kind == WeightKind::kNibbles || kind == WeightKind::kOffsetNibbles)
      pack_dwords(source, SplitNibbles(kind == WeightKind::kOffsetNibbles), panel);
    else
      pack_dwords(source, Unchanged{}, panel);
  }
}

}  // namespace octavo
