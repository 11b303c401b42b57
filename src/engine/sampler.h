// The next token from a row of logits. The choice depends on the logits, the parameters, the tokens so far and
// (seed, number of tokens generated) only: there is no state that a batch mate or an earlier step could have moved.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace octavo {

struct SamplingParams {
  float temperature = 0.0f;             // up to kGreedyTemperature: greedy
  float top_p = 1.0f;                   // the most likely tokens that sum to this probability; 1: off
  int64_t top_k = 0;                    // 0 or -1: off
  float min_p = 0.0f;                   // tokens at least this likely, relative to the most likely one; 0: off
  float repetition_penalty = 1.0f;      // divides positive logits, multiplies negative ones: of prompt and answer
  float presence_penalty = 0.0f;        // subtracted once for a token of the answer
  float frequency_penalty = 0.0f;       // subtracted for every time it occurs in the answer
  std::map<TokenId, float> logit_bias;  // added to the logits
  std::optional<uint64_t> seed;         // none: a new one for each request
};

inline constexpr float kGreedyTemperature = 1e-4f;

// Rejects NaN, infinities and values out of range; `where` is the field's name.
Result<void> check_sampling(const SamplingParams& params);
// Also: ids of logit_bias must lie below vocab_size.
Result<void> check_sampling(const SamplingParams& params, int64_t vocab_size);

// A seed that differs from call to call.
uint64_t fresh_seed();
// The seed of the i-th of n samples of one request.
uint64_t sample_seed(uint64_t seed, int64_t i);

// Highest logit; the lowest id among equals; NaN never wins.
TokenId argmax(std::span<const float> logits);

// Memory of one thread that samples.
struct SamplerScratch {
  std::vector<float> logits, weights;
  std::vector<std::pair<float, TokenId>> candidates;
};

// What one request asks of the sampler, and the tokens that its penalties count.
class Sampler {
 public:
  // `limit`: ids at and above it are never chosen (head rows beyond the tokenizer's vocabulary). `prompt`: for the
  // repetition penalty.
  Sampler(const SamplingParams& params, int64_t limit, std::span<const TokenId> prompt);

  // The token after `generated` others. `banned`: never chosen (end tokens before min_tokens). `allowed`: a filter,
  // [limit]; null: everything. None when no allowed logit is finite: the model's output is broken, or the filter is.
  std::optional<TokenId> choose(std::span<const float> logits, int64_t generated, std::span<const TokenId> banned,
                                const std::vector<bool>* allowed, SamplerScratch& scratch) const;
  // `id` is now part of the answer.
  void count(TokenId id);

  uint64_t seed() const { return seed_; }
  bool greedy() const { return params_.temperature <= kGreedyTemperature; }
  // Whether choose() gives the highest logit's id whatever was generated before, if nothing is banned or filtered.
  bool wants_highest() const {
    return (greedy() || params_.top_k == 1) && params_.logit_bias.empty() && !has_penalties();
  }

 private:
  struct Counts {
    int32_t answer = 0;
    bool prompt = false;
  };
  bool has_penalties() const;
  void edit(std::span<float> logits, std::span<const TokenId> banned, const std::vector<bool>* allowed) const;
  TokenId draw(std::span<const float> logits, float highest, int64_t generated, SamplerScratch& scratch) const;

  SamplingParams params_;
  uint64_t seed_;
  int64_t limit_;
  std::unordered_map<TokenId, Counts> counts_;
};

}  // namespace octavo
