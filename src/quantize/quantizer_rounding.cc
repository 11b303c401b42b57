// Copying and rounding, streamed in slabs of rows.
#include <fmt/format.h>

#include <algorithm>

#include "numerics/bits.h"
#include "parallel/slabs.h"
#include "quantize/damage.h"
#include "quantize/quantizer.h"

namespace octavo {
namespace {

constexpr int64_t kCopyBytes = int64_t{4} << 20;  // of a tensor copied at a time
constexpr int64_t kSlabBytes = int64_t{1} << 20;  // of a source quantized at a time, at least one row of blocks

int64_t rows_of(const TensorEntry& entry) {
  return entry.shape.size() < 2 ? 1 : entry.shape[0];
}

int64_t rows_bytes(const TensorEntry& entry, int64_t rows) {
  return rows * (entry.stored_bytes / std::max<int64_t>(rows_of(entry), 1));
}

// Where the value is that made an amax infinite.
std::optional<Position> find_non_finite_if(float amax, const RowsView& rows) {
  if (is_finite(amax)) return std::nullopt;
  return find_non_finite(rows);
}

// Rows per slab: whole blocks, some megabytes at most.
int64_t rows_per_slab(const TensorEntry& entry, const TensorFormat& format) {
  const int64_t unit = format.granularity == Granularity::kBlock ? format.block_rows : 1;
  return unit * std::max<int64_t>(kSlabBytes / std::max<int64_t>(rows_bytes(entry, unit), 1), 1);
}

}  // namespace

// Rows [begin, end): where they are mapped, or read into `buffer` through a transform.
Result<RowsView> Quantizer::source_rows(const TensorEntry& entry, int64_t begin, int64_t end,
                                        std::vector<float>& buffer) const {
  const int64_t cols = entry.shape.empty() ? 1 : entry.shape.back();
  if (entry.plain)
    return RowsView{entry.plain->element, entry.plain->data.data() + rows_bytes(entry, begin), end - begin, cols};
  buffer.resize(static_cast<size_t>((end - begin) * cols));
  OCTAVO_TRY(checkpoint_.tensors().read_f32(entry, begin, end, buffer));
  return RowsView{ElementType::kF32, reinterpret_cast<const std::byte*>(buffer.data()), end - begin, cols};
}

// A tensor that a transform changed, rounded to the type that it was stored in.
Result<void> Quantizer::copy_transformed(const TensorEntry& entry, ShardedWriter& writer, int64_t most_rows) {
  const ElementType element = *element_from_safetensors(entry.stored_type);
  return over_slabs(pool_, std::min(rows_of(entry), most_rows), rows_per_slab(entry, plain_format(element)),
                    [&](int64_t begin, int64_t end) -> Result<void> {
                      std::vector<float> values;
                      OCTAVO_ASSIGN(const RowsView rows, source_rows(entry, begin, end, values));
                      if (const auto at = find_non_finite(rows))
                        return fail(damaged_weight(entry, begin + at->row, at->col));
                      std::vector<std::byte> bytes(static_cast<size_t>(rows_bytes(entry, end - begin)));
                      for (size_t i = 0; i < values.size(); ++i) store_element(element, bytes.data(), i, values[i]);
                      OCTAVO_TRY(writer.write(entry.name, static_cast<size_t>(rows_bytes(entry, begin)), bytes));
                      checkpoint_.tensors().forget(entry, begin, end);
                      done(static_cast<int64_t>(bytes.size()), entry.name);
                      return {};
                    });
}

Result<void> Quantizer::copy(const TensorEntry& entry, ShardedWriter& writer, int64_t most_rows) {
  if (!entry.plain) return copy_transformed(entry, writer, most_rows);
  const std::span<const std::byte> data = entry.plain->data;
  const int64_t rows = std::max<int64_t>(entry.plain->rows(), 1);
  const int64_t row_bytes = static_cast<int64_t>(data.size()) / rows;
  if (row_bytes == 0) return {};
  return over_slabs(pool_, std::min(rows_of(entry), most_rows), std::max<int64_t>(kCopyBytes / row_bytes, 1),
                    [&](int64_t begin, int64_t end) -> Result<void> {
                      const auto offset = static_cast<size_t>(begin * row_bytes),
                                 size = static_cast<size_t>((end - begin) * row_bytes);
                      OCTAVO_TRY(writer.write(entry.name, offset, data.subspan(offset, size)));
                      checkpoint_.tensors().forget(entry, begin, end);
                      done(static_cast<int64_t>(size), entry.name);
                      return {};
                    });
}

// The largest magnitude of all the weights that share a scale.
Result<float> Quantizer::shared_amax(const WeightJob& job) {
  return shared_amax_.of(jobs_, job, [&](const WeightJob& other) -> Result<float> {
    float amax = 0;
    const TensorEntry& entry = *checkpoint_.tensors().find(other.module.name + ".weight");
    const auto slab = [&](int64_t begin, int64_t end) -> Result<void> {
      std::vector<float> buffer;
      OCTAVO_ASSIGN(const RowsView rows, source_rows(entry, begin, end, buffer));
      float slab_amax = 0;
      group_amax(rows, tensor_wide_format(ElementType::kE4m3), {&slab_amax, 1});
      if (const auto at = find_non_finite_if(slab_amax, rows))
        return fail(damaged_weight(entry, begin + at->row, at->col));
      checkpoint_.tensors().forget(entry, begin, end);
      const std::lock_guard lock(mutex_);
      amax = std::max(amax, slab_amax);
      return {};
    };
    OCTAVO_TRY(over_slabs(pool_, rows_of(entry), rows_per_slab(entry, job.format), slab));
    return amax;
  });
}

Result<RoundingError> Quantizer::quantize_slab(const WeightJob& job, const TensorEntry& entry, int64_t begin,
                                               int64_t end, std::span<float> scales, ShardedWriter& writer) {
  std::vector<float> buffer;
  OCTAVO_ASSIGN(const RowsView rows, source_rows(entry, begin, end, buffer));
  const TensorFormat& format = job.format;
  thread_local std::vector<std::byte> codes;
  codes.resize(static_cast<size_t>(format.element_bytes(end - begin, rows.cols)));
  RoundingError error;
  if (format.granularity == Granularity::kTensor) {
    error = encode_rows(rows, format, scales, codes);
  } else {
    const int64_t first =
        format.granularity == Granularity::kRow ? begin : begin / format.block_rows * format.scale_cols(rows.cols);
    const std::span<float> own = scales.subspan(
        static_cast<size_t>(first), static_cast<size_t>(format.scale_rows(end - begin) * format.scale_cols(rows.cols)));
    group_amax(rows, format, own);
    if (const auto at = find_non_finite_if(*std::max_element(own.begin(), own.end()), rows))
      return fail(damaged_weight(entry, begin + at->row, at->col));
    for (float& scale : own) scale = scale_from_amax(scale, format);
    error = encode_rows(rows, format, own, codes);
  }
  OCTAVO_TRY(writer.write(entry.name, static_cast<size_t>(format.element_bytes(begin, rows.cols)), codes));
  checkpoint_.tensors().forget(entry, begin, end);
  return error;
}

Result<void> Quantizer::write_packed(const WeightJob& job, const MatrixView& weight, ShardedWriter& writer) {
  const std::vector<TensorToWrite> tensors = weight_tensors(summary_.dialect, job.module, job.format);
  const std::vector<std::vector<std::byte>> parts = pack_weight(summary_.dialect, job.module, weight);
  for (size_t i = 0; i < parts.size(); ++i) OCTAVO_TRY(writer.write(tensors[i].name, 0, parts[i]));
  return {};
}

Result<void> Quantizer::write_input_scale(const WeightJob& job, float scale, ShardedWriter& writer) {
  if (!job.input_scale) return {};
  return writer.write(job.input_scale->name, 0, std::as_bytes(std::span(&scale, 1)));
}

// The whole weight in memory, then as the dialect packs it.
Result<void> Quantizer::quantize_packed(const WeightJob& job, ShardedWriter& writer) {
  const TensorEntry& entry = *checkpoint_.tensors().find(job.module.name + ".weight");
  const TensorFormat& format = job.format;
  const int64_t rows = job.module.rows, cols = job.module.cols, step = rows_per_slab(entry, format);
  float amax = 0;
  if (format.outer()) {
    OCTAVO_ASSIGN(amax, shared_amax(job));
  }
  Matrix out = unrounded_matrix(format, rows, cols, amax);
  std::vector<RoundingError> errors(static_cast<size_t>((rows + step - 1) / step));
  OCTAVO_TRY(over_slabs(pool_, rows_of(entry), step, [&](int64_t begin, int64_t end) -> Result<void> {
    std::vector<float> buffer;
    OCTAVO_ASSIGN(const RowsView source, source_rows(entry, begin, end, buffer));
    if (const auto at = find_non_finite(source)) return fail(damaged_weight(entry, begin + at->row, at->col));
    errors[static_cast<size_t>(begin / step)] = round_into(out, begin, source);
    checkpoint_.tensors().forget(entry, begin, end);
    done(rows_bytes(entry, end - begin), entry.name);
    return {};
  }));
  OCTAVO_TRY(write_packed(job, out.view(), writer));
  RoundingError total;
  for (const RoundingError& error : errors) total += error;
  summary_.quantized.push_back({entry.name, format, total.relative_rms(), 0});
  return {};
}

Result<void> Quantizer::quantize(const WeightJob& job, ShardedWriter& writer) {
  if (job.input_scale) OCTAVO_TRY(write_input_scale(job, input_scales_.at(job.module.name), writer));
  if (stores_packed(summary_.dialect, job.format)) return quantize_packed(job, writer);
  const TensorEntry& entry = *checkpoint_.tensors().find(job.module.name + ".weight");
  const TensorFormat& format = job.format;
  std::vector<float> scales(
      static_cast<size_t>(format.scale_rows(job.module.rows) * format.scale_cols(job.module.cols)));
  if (format.granularity == Granularity::kTensor) {
    OCTAVO_ASSIGN(const float amax, shared_amax(job));
    scales[0] = scale_from_amax(amax, format);
  }
  // Added up in the order of the slabs: the figure does not depend on the threads.
  const int64_t rows = rows_per_slab(entry, format);
  std::vector<RoundingError> errors(static_cast<size_t>((job.module.rows + rows - 1) / rows));
  OCTAVO_TRY(over_slabs(pool_, rows_of(entry), rows, [&](int64_t begin, int64_t end) -> Result<void> {
    OCTAVO_ASSIGN(errors[static_cast<size_t>(begin / rows)], quantize_slab(job, entry, begin, end, scales, writer));
    done(rows_bytes(entry, end - begin), entry.name);
    return {};
  }));
  OCTAVO_TRY(writer.write(job.scale_tensor.name, 0, std::as_bytes(std::span(scales))));
  RoundingError total;
  for (const RoundingError& error : errors) total += error;
  summary_.quantized.push_back({entry.name, format, total.relative_rms(), 0});
  return {};
}

}  // namespace octavo
