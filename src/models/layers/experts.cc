#include "models/layers/experts.h"

#include <algorithm>
#include <utility>

#include "kernels/math.h"

namespace octavo {
namespace {

constexpr int64_t kRoutedAtOnce = 16;  // that a thread takes at least

// The places of the `most` largest of p, the largest first. NaN is never the larger; p is used up.
void choose(std::span<float> p, int64_t most, int32_t* chosen, float* weights) {
  constexpr float kTaken = -1;
  for (int64_t j = 0; j < most; ++j) {
    size_t best = p.size();
    for (size_t e = 0; e < p.size(); ++e)
      if (p[e] != kTaken && (best == p.size() || p[e] > p[best])) best = e;
    chosen[j] = static_cast<int32_t>(best);
    weights[j] = std::exchange(p[best], kTaken);
  }
}

void softmax(std::span<float> row) {
  const float largest = *std::max_element(row.begin(), row.end());
  float sum = 0;
  for (float& value : row) sum += value = exp2_exact((value - largest) * kLog2E);
  for (float& value : row) value /= sum;
}

}  // namespace

void Routing::assign(const float* scores, int64_t rows, const ExpertsConfig& experts, ThreadPool& pool) {
  const auto k = static_cast<size_t>(experts.per_token), count = static_cast<size_t>(experts.count);
  chosen_.resize(static_cast<size_t>(rows) * k);
  weights_.resize(static_cast<size_t>(rows) * k);
  pool.parallel_for(rows, kRoutedAtOnce, [&](int64_t begin, int64_t end, int) {
    std::vector<float> p(count);
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(scores + r * experts.count, count, p.begin());
      softmax(p);
      int32_t* const chosen = chosen_.data() + static_cast<size_t>(r) * k;
      float* const weights = weights_.data() + static_cast<size_t>(r) * k;
      choose(p, experts.per_token, chosen, weights);
      if (!experts.normalize) continue;
      float sum = 0;
      for (size_t j = 0; j < k; ++j) sum += weights[j];
      for (size_t j = 0; j < k; ++j) weights[j] /= sum;
    }
  });
  begin_.assign(count + 1, 0);
  for (const int32_t expert : chosen_) ++begin_[static_cast<size_t>(expert) + 1];
  for (size_t e = 0; e < count; ++e) begin_[e + 1] += begin_[e];
  rows_.resize(chosen_.size());
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  for (size_t i = 0; i < chosen_.size(); ++i)
    rows_[next[static_cast<size_t>(chosen_[i])]++] = {static_cast<int32_t>(i / k), weights_[i]};
}

std::span<const Routing::Row> Routing::rows_of(int64_t expert) const {
  const auto at = static_cast<size_t>(expert);
  return std::span(rows_).subspan(begin_[at], begin_[at + 1] - begin_[at]);
}

}  // namespace octavo
