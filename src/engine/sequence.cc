#include "engine/sequence.h"

#include <algorithm>
#include <numeric>

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

Result<void> Sequence::forward(std::span<const TokenId> tokens, bool all_logits, const Decoder::HiddenHook& hidden) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const int64_t needed = (length() + rows + kPageTokens - 1) / kPageTokens - static_cast<int64_t>(pages_.size());
  if (needed > 0) OCTAVO_CHECK(kv_->allocate(needed, pages_), "{} pages", needed);

  std::vector<int64_t> logit_rows{rows - 1};
  if (all_logits) {
    logit_rows.resize(static_cast<size_t>(rows));
    std::iota(logit_rows.begin(), logit_rows.end(), int64_t{0});
  }
  logits_stride_ = (model_->config().vocab_size + 15) / 16 * 16;
  last_row_ = static_cast<int64_t>(logit_rows.size()) - 1;
  const auto count = static_cast<size_t>(logits_stride_) * logit_rows.size();
  if (logits_.size() < count) logits_ = AlignedArray<float>(count);
  const KvSequence sequence{.row_begin = 0, .num_rows = rows, .position = length(), .page_table = pages_.data()};
  model_->decoder().forward({tokens, {&sequence, 1}, logit_rows}, kv_->layers(), logits_.data(), logits_stride_,
                            model_->pool(), hidden);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<void> Sequence::feed(std::span<const TokenId> tokens, int64_t chunk, const Decoder::HiddenHook& hidden) {
  OCTAVO_TRY(check(tokens));
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk))
    OCTAVO_TRY(
        forward(tokens.subspan(begin, std::min(tokens.size() - begin, static_cast<size_t>(chunk))), false, hidden));
  return {};
}

Result<void> Sequence::feed_all_logits(std::span<const TokenId> tokens, LogitsVisitor visit, int64_t chunk,
                                       const Decoder::HiddenHook& hidden) {
  OCTAVO_TRY(check(tokens));
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
    const auto part = tokens.subspan(begin, std::min(tokens.size() - begin, static_cast<size_t>(chunk)));
    OCTAVO_TRY(forward(part, true, hidden));
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
