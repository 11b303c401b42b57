// Log-probabilities of tokens: log-softmax of the raw logits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace octavo {

// What an impossible token is given instead of minus infinity, which JSON does not know.
inline constexpr float kLowestLogprob = -9999.0f;

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // the most likely tokens, in order
};

// Of `token`, and of the `num_top` most likely ids below `limit`. All logits count in the softmax.
TokenLogprob token_logprob(std::span<const float> logits, TokenId token, int64_t num_top, int64_t limit);

}  // namespace octavo
