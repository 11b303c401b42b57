#include "models/layers/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <vector>

#include "numerics/bits.h"

namespace octavo {
namespace {

// Rows read, quantized and packed at a time: a multiple of every block height.
constexpr int64_t kSlabRows = 128;

// A slab of the stored matrix, in place.
MatrixView slab_of(const StoredLinear& stored, int64_t begin, int64_t end) {
  MatrixView slab = stored.view();
  slab.rows = end - begin;
  slab.codes += begin * stored.format.element_bytes(1, stored.cols);
  if (stored.format.granularity == Granularity::kRow) slab.scales += begin;
  if (stored.format.granularity == Granularity::kBlock)
    slab.scales += begin / stored.format.block_rows * stored.format.scale_cols(stored.cols);
  return slab;
}

// Rows [begin, end) as FP32 values, scales applied.
Result<void> read_values(const Checkpoint& checkpoint, const StoredLinear& stored, int64_t begin, int64_t end,
                         std::span<float> values) {
  OCTAVO_TRY(checkpoint.tensors().read_f32(*stored.entry, begin, end, values));
  if (!stored.format.scaled()) return {};
  const MatrixView scales{stored.format, stored.rows, stored.cols, nullptr, stored.scales.data()};
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < stored.cols; ++c)
      values[static_cast<size_t>((r - begin) * stored.cols + c)] *= scales.scale_at(r, c);
  return {};
}

Error not_finite(const StoredLinear& stored, int64_t index) {
  return {.what = "a weight that is to be quantized is NaN or infinite",
          .where = fmt::format("{}, tensor {}, row {}, column {}", stored.entry->file.string(), stored.entry->name,
                               index / stored.cols, index % stored.cols),
          .remedy = "the checkpoint is damaged: fetch it again, or keep this module wide with --ignore"};
}

Result<float> whole_tensor_amax(const Checkpoint& checkpoint, const StoredLinear& stored) {
  std::vector<float> values(static_cast<size_t>(kSlabRows * stored.cols));
  float amax = 0;
  for (int64_t begin = 0; begin < stored.rows; begin += kSlabRows) {
    const int64_t end = std::min(stored.rows, begin + kSlabRows);
    const std::span<float> slab(values.data(), static_cast<size_t>((end - begin) * stored.cols));
    OCTAVO_TRY(read_values(checkpoint, stored, begin, end, slab));
    for (size_t i = 0; i < slab.size(); ++i) {
      if (!is_finite(slab[i])) return fail(not_finite(stored, begin * stored.cols + static_cast<int64_t>(i)));
      amax = std::max(amax, std::fabs(slab[i]));
    }
  }
  return amax;
}

struct ErrorSums {
  double difference = 0, value = 0;
};

// Quantizes FP32 values to `format`; adds the squared differences to `sums`.
Matrix quantize_slab(std::span<const float> values, int64_t rows, int64_t cols, const TensorFormat& format,
                     float tensor_scale, ErrorSums& sums) {
  Matrix out;
  if (format.granularity == Granularity::kTensor) {  // the scale is the whole tensor's
    out = Matrix{.format = format, .rows = rows, .cols = cols};
    out.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows, cols)));
    out.scales = {tensor_scale};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        store_element(format.element, out.codes.data() + r * format.element_bytes(1, cols), static_cast<size_t>(c),
                      values[static_cast<size_t>(r * cols + c)] / tensor_scale);
  } else {
    out = quantize(values, rows, cols, format);
  }
  const MatrixView view = out.view();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const double value = values[static_cast<size_t>(r * cols + c)], difference = view.at(r, c) - value;
      sums.difference += difference * difference;
      sums.value += value * value;
    }
  return out;
}

Result<ErrorSums> convert_slab(const Checkpoint& checkpoint, const StoredLinear& stored, PackedLinear& packed,
                               int64_t row, int64_t begin, float tensor_scale) {
  const int64_t end = std::min(stored.rows, begin + kSlabRows), cols = stored.cols;
  std::vector<float> values(static_cast<size_t>((end - begin) * cols));
  OCTAVO_TRY(read_values(checkpoint, stored, begin, end, values));
  const TensorFormat& format = packed.key.weight;
  if (format.scaled())
    for (size_t i = 0; i < values.size(); ++i)
      if (!is_finite(values[i])) return fail(not_finite(stored, begin * cols + static_cast<int64_t>(i)));
  ErrorSums sums;
  const Matrix matrix = quantize_slab(values, end - begin, cols, format, tensor_scale, sums);
  packed.kernel->pack(packed, row + begin, matrix.view());
  return sums;
}

}  // namespace

Result<double> load_weight(const Checkpoint& checkpoint, std::string_view, const StoredLinear& stored,
                           PackedLinear& packed, int64_t row, ThreadPool& pool) {
  const int64_t slabs = (stored.rows + kSlabRows - 1) / kSlabRows;
  if (stored.format == packed.key.weight && stored.entry->plain) {
    pool.parallel_items(slabs, [&](int64_t s, int) {
      const int64_t begin = s * kSlabRows, end = std::min(stored.rows, begin + kSlabRows);
      packed.kernel->pack(packed, row + begin, slab_of(stored, begin, end));
    });
    return 0.0;
  }
  float tensor_scale = 1.0f;
  if (packed.key.weight.granularity == Granularity::kTensor) {
    OCTAVO_ASSIGN(const float amax, whole_tensor_amax(checkpoint, stored));
    tensor_scale = scale_from_amax(amax, packed.key.weight);
  }
  std::mutex mutex;
  ErrorSums total;
  std::optional<Error> error;
  pool.parallel_items(slabs, [&](int64_t s, int) {
    Result<ErrorSums> sums = convert_slab(checkpoint, stored, packed, row, s * kSlabRows, tensor_scale);
    const std::lock_guard lock(mutex);
    if (!sums) {
      error = std::move(sums).error();
      return;
    }
    total.difference += sums->difference;
    total.value += sums->value;
  });
  if (error) return fail(std::move(*error));
  return total.value > 0 ? std::sqrt(total.difference / total.value) : 0.0;
}

}  // namespace octavo
