#include "models/rope_cache.h"

#include <algorithm>
#include <cmath>

namespace octavo {

RopeCache::RopeCache(const ModelConfig& config)
    : frequencies_(inverse_frequencies(config)), head_dim_(config.head_dim) {}

const float* RopeCache::table(int64_t positions) {
  if (positions <= computed_) return values_.data();
  const int64_t capacity = static_cast<int64_t>(values_.size()) / head_dim_;
  if (positions > capacity) {
    AlignedArray<float> grown(static_cast<size_t>(std::max(positions, 2 * capacity) * head_dim_));
    std::copy_n(values_.data(), computed_ * head_dim_, grown.data());
    values_ = std::move(grown);
  }
  const int64_t half = head_dim_ / 2;
  for (int64_t p = computed_; p < positions; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies_.inverse_frequencies[static_cast<size_t>(i)];
      float* row = values_.data() + p * head_dim_;
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * frequencies_.attention_factor;
      row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * frequencies_.attention_factor;
    }
  computed_ = positions;
  return values_.data();
}

}  // namespace octavo
