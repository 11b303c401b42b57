// Answer: what becomes of the tokens that one request samples: its text, its end, and what may be sent when.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/logprobs.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

namespace octavo {

struct AnswerRules {
  int64_t max_tokens = 0;
  int64_t min_tokens = 0;           // no end token and no stop string before this many
  std::vector<TokenId> end_tokens;  // never part of the answer
  std::vector<std::string> stop;
};

// Tokens and text that are certain. A token comes with the first piece of text that it contributed to.
struct AnswerPiece {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;
  std::optional<TokenLogprob> end;  // of the end token that ended it, which is none of `tokens`; where asked for
  std::string text;
};

class Answer {
 public:
  Answer(const Tokenizer& tokenizer, AnswerRules rules);

  // The next sampled token (and its logprob where asked for). Not after the end.
  void push(TokenId id, std::optional<TokenLogprob> logprob = std::nullopt);
  // Ends it where it stands: "length" without a token, "abort", "error".
  void finish(std::string_view reason);

  bool finished() const { return !reason_.empty(); }
  const std::string& finish_reason() const { return reason_; }  // "stop", "length", or that of finish()
  const std::optional<std::string>& stop_match() const { return stops_.match(); }
  const std::optional<TokenId>& end_token() const { return end_token_; }  // that ended it

  // All sampled tokens but an end token; those of a stop string included.
  std::span<const TokenId> generated() const { return generated_; }
  // What may not be sampled next.
  std::span<const TokenId> banned() const;
  // What became certain since the last call.
  AnswerPiece take();
  // Tokens that take() has handed out or will: those that contributed to the text.
  int64_t num_tokens() const { return num_tokens_; }

 private:
  struct Held {
    TokenId id;
    int64_t start;   // bytes of text before it
    bool has_bytes;  // false: special tokens
    std::optional<TokenLogprob> logprob;
  };
  void add_text(std::string text);
  void end(std::string_view reason);
  void release_tokens();

  const Tokenizer* tokenizer_;
  AnswerRules rules_;
  StreamDecoder decoder_;
  StopStrings stops_;
  std::string reason_;
  std::optional<TokenId> end_token_;
  std::vector<TokenId> generated_;
  std::deque<Held> held_;
  AnswerPiece piece_;
  int64_t decoded_ = 0;  // bytes of text so far, held back or not
  int64_t certain_ = 0;  // bytes handed to piece_
  int64_t num_tokens_ = 0;
};

}  // namespace octavo
