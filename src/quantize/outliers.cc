#include "quantize/outliers.h"

#include <algorithm>
#include <numeric>

#include "formats/tensor.h"

namespace octavo {

std::vector<int32_t> choose_outliers(std::span<const float> amax, int64_t count) {
  std::vector<int32_t> channels(amax.size());
  std::iota(channels.begin(), channels.end(), 0);
  std::stable_sort(channels.begin(), channels.end(),
                   [&](int32_t a, int32_t b) { return amax[static_cast<size_t>(a)] > amax[static_cast<size_t>(b)]; });
  channels.resize(static_cast<size_t>(count));
  std::sort(channels.begin(), channels.end());
  return channels;
}

StoredOutliers take_outlier_columns(std::span<float> weight, int64_t cols, const std::vector<int32_t>& channels) {
  StoredOutliers outliers{.channels = channels, .weight = {}};
  if (channels.empty()) return outliers;
  for (size_t row = 0; row < weight.size(); row += static_cast<size_t>(cols))
    for (const int32_t channel : channels) {
      float& value = weight[row + static_cast<size_t>(channel)];
      std::byte code[2];
      store_element(ElementType::kBf16, code, 0, value);
      outliers.weight.push_back(load_element(ElementType::kBf16, code, 0));
      value = 0.0f;
    }
  return outliers;
}

}  // namespace octavo
