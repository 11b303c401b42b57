#include "kernels/activation.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace octavo {

Activation ActivationBuffer::resize(const TensorFormat& format, int64_t rows, int64_t cols, float stored_scale,
                                    std::span<const int32_t> outlier_channels) {
  Activation view{.format = format, .rows = rows, .cols = cols};
  const int64_t row_bytes = format.element_bytes(1, cols);
  view.code_stride = (row_bytes + 63) / 64 * 64;
  if (codes_.size() < static_cast<size_t>(rows * view.code_stride))
    codes_ = AlignedBytes(static_cast<size_t>(rows * view.code_stride));
  view.codes = codes_.data();
  if (view.code_stride != row_bytes)  // an earlier, wider shape may have left codes there
    for (int64_t r = 0; r < rows; ++r)
      std::memset(view.row(r) + row_bytes, 0, static_cast<size_t>(view.code_stride - row_bytes));
  view.scale_stride = format.scale_cols(cols);
  const auto count = static_cast<size_t>(std::max<int64_t>(1, rows * view.scale_stride));
  if (scales_.size() < count) scales_ = AlignedArray<float>(count);
  view.scales = scales_.data();
  if (format.granularity == Granularity::kTensor) view.scales[0] = stored_scale;
  view.outlier_channels = outlier_channels;
  const size_t outliers = static_cast<size_t>(rows) * outlier_channels.size();
  if (outliers_.size() < outliers) outliers_ = AlignedArray<float>(outliers);
  view.outliers = outliers_.data();
  return view;
}

void take_outliers(float* values, const Activation& output, int64_t r) {
  float* taken = output.outliers + r * std::ssize(output.outlier_channels);
  for (const int32_t channel : output.outlier_channels) {
    *taken++ = values[channel];
    values[channel] = 0.0f;
  }
}

}  // namespace octavo
