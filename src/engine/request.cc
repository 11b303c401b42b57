#include "engine/request.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace octavo {

Answer::Answer(const Tokenizer& tokenizer, AnswerRules rules)
    : tokenizer_(&tokenizer), rules_(std::move(rules)), decoder_(tokenizer), stops_(rules_.stop) {}

std::span<const TokenId> Answer::banned() const {
  if (static_cast<int64_t>(generated_.size()) < rules_.min_tokens) return rules_.end_tokens;
  return {};
}

void Answer::push(TokenId id, std::optional<TokenLogprob> logprob) {
  OCTAVO_CHECK(!finished(), "token {} after the end", id);
  if (std::find(rules_.end_tokens.begin(), rules_.end_tokens.end(), id) != rules_.end_tokens.end()) {
    piece_.end = std::move(logprob);
    end_token_ = id;
    end("stop");
    return;
  }
  generated_.push_back(id);
  const bool has_bytes = !tokenizer_->is_special(id) && !tokenizer_->token_bytes(id).empty();
  held_.push_back({id, decoded_, has_bytes, std::move(logprob)});
  add_text(decoder_.push(id));
  const auto count = static_cast<int64_t>(generated_.size());
  if (stops_.match())
    end("stop");
  else if (count >= rules_.max_tokens)
    end("length");
  else
    release_tokens();
}

void Answer::finish(std::string_view reason) {
  if (!finished()) end(reason);
}

void Answer::add_text(std::string text) {
  decoded_ += static_cast<int64_t>(text.size());
  if (static_cast<int64_t>(generated_.size()) > rules_.min_tokens) text = stops_.push(text);
  certain_ += static_cast<int64_t>(text.size());
  piece_.text += text;
}

void Answer::end(std::string_view reason) {
  if (!stops_.match()) {
    add_text(decoder_.finish());
    const std::string rest = stops_.finish();
    certain_ += static_cast<int64_t>(rest.size());
    piece_.text += rest;
  }
  reason_ = stops_.match() && reason == "length" ? "stop" : reason;
  release_tokens();
}

void Answer::release_tokens() {
  // Finished without a match: everything. Otherwise what contributed to the certain text.
  const bool all = finished() && !stops_.match();
  while (!held_.empty()) {
    Held& next = held_.front();
    if (!all && !(next.has_bytes ? next.start < certain_ : next.start <= certain_)) break;
    piece_.tokens.push_back(next.id);
    if (next.logprob) piece_.logprobs.push_back(*std::move(next.logprob));
    ++num_tokens_;
    held_.pop_front();
  }
  if (finished()) held_.clear();
}

AnswerPiece Answer::take() {
  return std::exchange(piece_, {});
}

}  // namespace octavo
