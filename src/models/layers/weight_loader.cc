#include "models/layers/weight_loader.h"

#include <algorithm>
#include <vector>

#include "formats/quantize_rows.h"
#include "parallel/slabs.h"

namespace octavo {
namespace {

// Rows read, quantized and packed at a time: a multiple of every block height.
constexpr int64_t kSlabRows = 128;

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

Error not_finite(const StoredLinear& stored, int64_t row, int64_t col) {
  return {.what = "a weight that is to be quantized is NaN or infinite",
          .where = fmt::format("{}, tensor {}, row {}, column {}", stored.entry->file.string(), stored.entry->name, row,
                               col),
          .remedy = "the checkpoint is damaged: fetch it again, or keep this module wide with --ignore"};
}

// Rows [begin, end) as the quantizer takes them: in place where they are plain floats, else as FP32 in `buffer`.
Result<RowsView> source_rows(const Checkpoint& checkpoint, const StoredLinear& stored, int64_t begin, int64_t end,
                             std::vector<float>& buffer) {
  const ElementType element = stored.format.element;
  if (stored.in_place() && !stored.format.scaled() &&
      (element == ElementType::kBf16 || element == ElementType::kF16 || element == ElementType::kF32))
    return RowsView{element, stored.view().slab(begin, end).codes, end - begin, stored.cols};
  buffer.resize(static_cast<size_t>((end - begin) * stored.cols));
  OCTAVO_TRY(read_stored_rows(checkpoint, stored, begin, end, buffer));
  return RowsView{ElementType::kF32, reinterpret_cast<const std::byte*>(buffer.data()), end - begin, stored.cols};
}

Result<float> whole_tensor_amax(const Checkpoint& checkpoint, const StoredLinear& stored) {
  std::vector<float> buffer;
  float amax = 0;
  for (int64_t begin = 0; begin < stored.rows; begin += kSlabRows) {
    OCTAVO_ASSIGN(const RowsView rows,
                  source_rows(checkpoint, stored, begin, std::min(stored.rows, begin + kSlabRows), buffer));
    float slab = 0;
    group_amax(rows, tensor_wide_format(ElementType::kE4m3), {&slab, 1});
    amax = std::max(amax, slab);
  }
  return amax;
}

// Plain targets: every value rounded to the nearest element.
RoundingError round_rows(const RowsView& rows, ElementType element, Matrix& out) {
  RoundingError error;
  for (int64_t i = 0; i < rows.rows * rows.cols; ++i) {
    const float value = load_element(rows.element, rows.data, static_cast<size_t>(i));
    store_element(element, out.codes.data(), static_cast<size_t>(i), value);
    const double difference =
        static_cast<double>(load_element(element, out.codes.data(), static_cast<size_t>(i))) - value;
    error += {difference * difference, static_cast<double>(value) * value};
  }
  return error;
}

// What the slabs of a tensor share: its scale, or the outer scale over those of the groups.
struct WholeScale {
  float tensor = 1.0f;
  OuterScale outer = {};
};

Result<WholeScale> whole_scale(const Checkpoint& checkpoint, const StoredLinear& stored, const TensorFormat& format) {
  WholeScale scale;
  if (format.granularity != Granularity::kTensor && !format.outer()) return scale;
  OCTAVO_ASSIGN(const float amax, whole_tensor_amax(checkpoint, stored));
  if (format.outer())
    scale.outer = outer_from_amax(amax, format);
  else
    scale.tensor = scale_from_amax(amax, format);
  return scale;
}

Result<RoundingError> convert_slab(const Checkpoint& checkpoint, const StoredLinear& stored, PackedLinear& packed,
                                   int64_t row, int64_t begin, const WholeScale& whole) {
  const int64_t end = std::min(stored.rows, begin + kSlabRows);
  std::vector<float> buffer;
  OCTAVO_ASSIGN(const RowsView rows, source_rows(checkpoint, stored, begin, end, buffer));
  const TensorFormat& format = packed.key.weight;
  Matrix out{.format = format, .rows = rows.rows, .cols = rows.cols, .codes = {}, .scales = {}, .zeros = {}};
  out.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows.rows, rows.cols)));
  RoundingError error;
  if (!format.scaled()) {
    error = round_rows(rows, format.element, out);
  } else {
    if (const auto bad = find_non_finite(rows)) return fail(not_finite(stored, begin + bad->row, bad->col));
    const std::span<std::byte> codes(out.codes.data(), out.codes.size());
    out.scales.resize(static_cast<size_t>(format.scale_rows(rows.rows) * format.scale_cols(rows.cols)), whole.tensor);
    if (format.zero_points) out.zeros.resize(out.scales.size());
    out.outer = whole.outer;
    const ScaleGrid grid{.scales = out.scales, .zeros = out.zeros, .outer = out.outer};
    error = format.granularity == Granularity::kTensor ? encode_rows(rows, format, grid, codes)
                                                       : quantize_rows(rows, format, grid, codes);
  }
  packed.kernel->pack(packed, row + begin, out.view());
  return error;
}

}  // namespace

Result<void> read_stored_rows(const Checkpoint& checkpoint, const StoredLinear& stored, int64_t begin, int64_t end,
                              std::span<float> values) {
  if (!stored.in_place()) return checkpoint.tensors().read_f32(*stored.entry, begin, end, values);
  const MatrixView matrix = stored.view();
  for (int64_t r = begin; r < end; ++r) dequantize_row(matrix, r, values.data() + (r - begin) * stored.cols);
  return {};
}

Result<double> load_weight(const Checkpoint& checkpoint, const StoredLinear& stored, PackedLinear& packed, int64_t row,
                           ThreadPool& pool) {
  // A tied head is the embedding, which stays in use; the pages of other weights need not stay resident.
  const auto loaded = [&](double error) {
    if (stored.entry->name != kEmbedding) checkpoint.tensors().forget(*stored.entry, 0, stored.entry->shape[0]);
    return error;
  };
  const int64_t slabs = (stored.rows + kSlabRows - 1) / kSlabRows;
  if (stored.format == packed.key.weight && stored.in_place()) {
    pool.parallel_items(slabs, [&](int64_t s, int) {
      const int64_t begin = s * kSlabRows, end = std::min(stored.rows, begin + kSlabRows);
      packed.kernel->pack(packed, row + begin, stored.view().slab(begin, end));
    });
    return loaded(0.0);
  }
  OCTAVO_ASSIGN(const WholeScale whole, whole_scale(checkpoint, stored, packed.key.weight));
  std::vector<RoundingError> errors(static_cast<size_t>(slabs));
  OCTAVO_TRY(over_slabs(pool, stored.rows, kSlabRows, [&](int64_t begin, int64_t) -> Result<void> {
    OCTAVO_ASSIGN(errors[static_cast<size_t>(begin / kSlabRows)],
                  convert_slab(checkpoint, stored, packed, row, begin, whole));
    return {};
  }));
  RoundingError total;
  for (const RoundingError& error : errors) total += error;
  return loaded(total.relative_rms());
}

}  // namespace octavo
