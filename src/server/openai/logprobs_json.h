// Log-probabilities in the two shapes of the API.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/serving.h"

namespace octavo {

// Entries of a chat choice's logprobs.content: {token, logprob, bytes, top_logprobs}. `as_ids`: tokens are named
// "token_id:5".
Json chat_logprobs(std::span<const TokenLogprob> entries, const Tokenizer& tokenizer, bool as_ids);

// {tokens, token_logprobs, top_logprobs, text_offset} of a completion choice, token after token. Offsets count code
// points from the beginning of the choice's text, prompt included where it is echoed.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Tokenizer& tokenizer, bool as_ids)
      : tokenizer_(tokenizer), as_ids_(as_ids), decoder_(tokenizer) {}

  // The echoed prompt's tokens; `added`: leading ones that are no part of its text. Before add().
  void add_prompt(std::span<const TokenLogprob> entries, size_t added);
  void add(std::span<const TokenLogprob> entries);
  // What was added since the last call.
  Json take();

 private:
  void add_entry(const TokenLogprob& entry, bool has_logprob);

  const Tokenizer& tokenizer_;
  bool as_ids_;
  StreamDecoder decoder_;  // of the generated tokens
  int64_t offset_ = 0;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
};

// The text of an echoed prompt: all tokens spelled out, but for the first `added`.
std::string echo_text(std::span<const TokenId> prompt, size_t added, const Tokenizer& tokenizer);

}  // namespace octavo
