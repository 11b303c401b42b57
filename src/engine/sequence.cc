#include "engine/sequence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/sampler.h"

namespace octavo {

Result<void> Sequence::check(std::span<const TokenId> tokens) const {
  const ModelConfig& config = model_->config();
  for (const TokenId id : tokens)
    if (id < 0 || id >= config.vocab_size)
      return fail({.what = "token id outside the vocabulary",
                   .found = fmt::format("{}", id),
                   .expected = fmt::format("0 to {}", config.vocab_size - 1)});
  const int64_t length = this->length() + static_cast<int64_t>(tokens.size());
  if (length > config.context_length())
    return fail({.what = "the text is longer than the model's context",
                 .found = fmt::format("{} tokens", length),
                 .expected = fmt::format("at most {}", config.context_length()),
                 .remedy = "shorten the prompt, or ask for fewer tokens"});
  const int64_t pages = (length + kPageTokens - 1) / kPageTokens - static_cast<int64_t>(pages_.size());
  if (pages > kv_->num_free())
    return fail({.what = "the KV cache is too small for this text",
                 .found = fmt::format("{} tokens", length),
                 .expected = fmt::format("at most {}", int64_t{kv_->num_pages()} * kPageTokens)});
  return {};
}

Batch Sequence::place(std::span<const TokenId> tokens, bool all_logits) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const int64_t needed = (length() + rows + kPageTokens - 1) / kPageTokens - static_cast<int64_t>(pages_.size());
  if (needed > 0) OCTAVO_CHECK(kv_->allocate(needed, pages_), "{} pages", needed);

  logit_rows_.assign(1, rows - 1);
  if (all_logits) {
    logit_rows_.resize(static_cast<size_t>(rows));
    std::iota(logit_rows_.begin(), logit_rows_.end(), int64_t{0});
  }
  logits_stride_ = (model_->config().vocab_size + 15) / 16 * 16;
  last_row_ = static_cast<int64_t>(logit_rows_.size()) - 1;
  const auto count = static_cast<size_t>(logits_stride_) * logit_rows_.size();
  if (logits_.size() < count) logits_ = AlignedArray<float>(count);
  placed_ = {.row_begin = 0, .num_rows = rows, .position = length(), .page_table = pages_.data()};
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {tokens, {&placed_, 1}, logit_rows_};
}

void Sequence::forward(std::span<const TokenId> tokens, bool all_logits, const Decoder::HiddenHook& hidden) {
  const Batch batch = place(tokens, all_logits);
  model_->decoder().forward(batch, kv_->layers(), logits_.data(), logits_stride_, model_->pool(), hidden);
}

Result<void> Sequence::feed(std::span<const TokenId> tokens, int64_t chunk, const Decoder::HiddenHook& hidden) {
  OCTAVO_TRY(check(tokens));
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk))
    forward(tokens.subspan(begin, std::min(tokens.size() - begin, static_cast<size_t>(chunk))), false, hidden);
  return {};
}

Result<std::optional<TokenId>> Sequence::feed_highest(std::span<const TokenId> tokens, int64_t limit, int64_t chunk) {
  OCTAVO_TRY(check(tokens));
  const auto last = static_cast<size_t>(std::min(chunk, std::ssize(tokens)));
  OCTAVO_TRY(feed(tokens.first(tokens.size() - last), chunk));
  TokenId best = -1;
  if (model_->decoder().can_find_highest(1)) {
    const Batch batch = place(tokens.last(last), false);
    model_->decoder().forward_highest(batch, kv_->layers(), logits_.data(), logits_stride_, limit, {&best, 1},
                                      model_->pool());
  } else {
    forward(tokens.last(last), false, {});
    best = argmax(logits().first(static_cast<size_t>(limit)));
    if (!std::isfinite(logits()[static_cast<size_t>(best)])) best = -1;
  }
  return best < 0 ? std::nullopt : std::optional(best);
}

Result<void> Sequence::feed_all_logits(std::span<const TokenId> tokens, LogitsVisitor visit, int64_t chunk,
                                       const Decoder::HiddenHook& hidden) {
  OCTAVO_TRY(check(tokens));
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
    const auto part = tokens.subspan(begin, std::min(tokens.size() - begin, static_cast<size_t>(chunk)));
    forward(part, true, hidden);
    visit(static_cast<int64_t>(begin), logits_.data(), static_cast<int64_t>(part.size()), logits_stride_);
  }
  return {};
}

void Sequence::truncate(int64_t length) {
  tokens_.resize(static_cast<size_t>(length));
  const auto keep = static_cast<size_t>((length + kPageTokens - 1) / kPageTokens);
  if (keep >= pages_.size()) return;
  kv_->release(std::span(pages_).subspan(keep));
  pages_.resize(keep);
}

}  // namespace octavo
