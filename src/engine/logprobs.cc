#include "engine/logprobs.h"

#include <algorithm>

#include "engine/exponentials.h"

namespace octavo {
namespace {

// The `count` highest logits and their ids, in order; the lower id first among equals; no NaN.
std::vector<std::pair<TokenId, float>> highest_logits(std::span<const float> logits, size_t count) {
  std::vector<std::pair<TokenId, float>> top;
  count = std::min(count, logits.size());
  if (count == 0) return top;
  top.reserve(count + 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (!(logit == logit) || (top.size() == count && logit <= top.back().second)) continue;
    const auto place = std::upper_bound(top.begin(), top.end(), logit,
                                        [](float value, const auto& entry) { return value > entry.second; });
    top.insert(place, {static_cast<TokenId>(i), logit});
    if (top.size() > count) top.pop_back();
  }
  return top;
}

}  // namespace

TokenLogprob token_logprob(std::span<const float> logits, TokenId token, int64_t num_top, int64_t limit) {
  const double normalizer = log_sum_exp(logits);
  const auto logprob = [&](float logit) {
    const double value = logit - normalizer;
    return value >= kLowestLogprob ? std::min(static_cast<float>(value), 0.0f) : kLowestLogprob;  // also for NaN
  };
  TokenLogprob result{.token = token, .logprob = logprob(logits[static_cast<size_t>(token)])};
  result.top = highest_logits(logits.first(std::min(logits.size(), static_cast<size_t>(limit))),
                              static_cast<size_t>(std::max<int64_t>(0, num_top)));
  for (auto& [id, value] : result.top) value = logprob(value);
  return result;
}

}  // namespace octavo
