#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace octavo {

Result<void> check_sampling(const SamplingParams& params) {
  if (!(params.temperature >= 0.0f) || !(params.temperature <= 100.0f))
    return fail({.what = "temperature is out of range",
                 .where = "--temperature",
                 .found = fmt::format("{}", params.temperature),
                 .expected = "0 to 100"});
  if (!(params.top_p > 0.0f) || !(params.top_p <= 1.0f))
    return fail({.what = "top-p is out of range",
                 .where = "--top-p",
                 .found = fmt::format("{}", params.top_p),
                 .expected = "above 0, at most 1"});
  if (params.top_k < 0)
    return fail({.what = "top-k is out of range",
                 .where = "--top-k",
                 .found = fmt::format("{}", params.top_k),
                 .expected = "0 (off) or more"});
  return {};
}

TokenId argmax(std::span<const float> logits) {
  size_t best = 0;
  float highest = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > highest) {
      highest = logits[i];
      best = i;
    }
  return static_cast<TokenId>(best);
}

TokenId Sampler::sample(std::span<const float> logits, int64_t limit) {
  if (static_cast<int64_t>(logits.size()) > limit) logits = logits.first(static_cast<size_t>(limit));
  const TokenId best = argmax(logits);
  if (params_.temperature < 1e-5f) return best;
  const double highest = logits[static_cast<size_t>(best)];
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp((logits[i] - highest) / params_.temperature);
    if (p > 0) candidates_.emplace_back(static_cast<float>(p), static_cast<TokenId>(i));
  }
  if (params_.top_p < 1.0f || params_.top_k > 0) {
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    if (params_.top_k > 0) candidates_.resize(std::min(candidates_.size(), static_cast<size_t>(params_.top_k)));
    double total = 0, kept = 0;
    for (const auto& [p, id] : candidates_) total += p;
    size_t count = 0;
    while (count < candidates_.size() && kept < params_.top_p * total) kept += candidates_[count++].first;
    candidates_.resize(std::max<size_t>(1, count));
  }
  double total = 0;
  for (const auto& [p, id] : candidates_) total += p;
  double target = random_.uniform() * total;
  for (const auto& [p, id] : candidates_)
    if ((target -= p) < 0) return id;
  return candidates_.empty() ? best : candidates_.back().second;
}

}  // namespace octavo
