// Ranges of the sampling parameters.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/sampler.h"

namespace octavo {
namespace {

Result<void> check_range(const char* name, float value, float low, float high, const char* expected) {
  // Written so that NaN fails.
  if (value >= low && value <= high) return {};
  return fail({.what = fmt::format("{} is out of range", name),
               .where = name,
               .found = fmt::format("{}", value),
               .expected = expected});
}

}  // namespace

Result<void> check_sampling(const SamplingParams& params) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  OCTAVO_TRY(check_range("temperature", params.temperature, 0, 100, "0 (greedy) to 100"));
  OCTAVO_TRY(check_range("top_p", params.top_p, kLeast, 1, "above 0, at most 1"));
  OCTAVO_TRY(check_range("min_p", params.min_p, 0, 1, "0 (off) to 1"));
  OCTAVO_TRY(check_range("repetition_penalty", params.repetition_penalty, 1e-3f, 1e3f, "0.001 to 1000; 1 is off"));
  OCTAVO_TRY(check_range("presence_penalty", params.presence_penalty, -2, 2, "-2 to 2"));
  OCTAVO_TRY(check_range("frequency_penalty", params.frequency_penalty, -2, 2, "-2 to 2"));
  constexpr int64_t kMostTopK = std::numeric_limits<int32_t>::max();
  if (params.top_k < -1 || params.top_k > kMostTopK)
    return fail({.what = "top_k is out of range",
                 .where = "top_k",
                 .found = fmt::format("{}", params.top_k),
                 .expected = fmt::format("-1 or 0 (off) to {}", kMostTopK)});
  for (const auto& [id, bias] : params.logit_bias) {
    OCTAVO_TRY(check_range("logit_bias", bias, -100, 100, "-100 to 100"));
    if (id < 0)
      return fail({.what = "logit_bias names a token that does not exist",
                   .where = "logit_bias",
                   .found = fmt::format("{}", id),
                   .expected = "a token id"});
  }
  return {};
}

Result<void> check_sampling(const SamplingParams& params, int64_t vocab_size) {
  OCTAVO_TRY(check_sampling(params));
  if (!params.logit_bias.empty() && params.logit_bias.rbegin()->first >= vocab_size)
    return fail({.what = "logit_bias names a token that does not exist",
                 .where = "logit_bias",
                 .found = fmt::format("{}", params.logit_bias.rbegin()->first),
                 .expected = fmt::format("0 to {}", vocab_size - 1)});
  return {};
}

}  // namespace octavo
