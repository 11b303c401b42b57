// Sampler: the next token from logits. Everything in FP32 and double, seeded; no state but the random sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace octavo {

struct SamplingParams {
  float temperature = 0.0f;  // below 1e-5: greedy
  float top_p = 1.0f;
  int64_t top_k = 0;  // 0: off
  uint64_t seed = 0;
};

Result<void> check_sampling(const SamplingParams& params);

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params), random_(params.seed) {}
  // `limit`: ids at and above it are never chosen (head rows beyond the tokenizer's vocabulary).
  TokenId sample(std::span<const float> logits, int64_t limit);

 private:
  SamplingParams params_;
  Random random_;
  std::vector<std::pair<float, TokenId>> candidates_;
};

// Highest logit; the lowest id among equals; NaN never wins.
TokenId argmax(std::span<const float> logits);

}  // namespace octavo
