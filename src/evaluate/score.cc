#include "evaluate/score.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/exponentials.h"
#include "engine/runner.h"
#include "engine/sampler.h"

namespace octavo {
namespace {

constexpr int64_t kStepRows = 512;    // rows of one pass
constexpr int64_t kStepLogits = 128;  // of them, rows whose logits are wanted

// Bytes of the white space at the end of `text`: what Python's str.rstrip() takes off.
size_t trailing_space(std::string_view text) {
  static constexpr std::string_view kSpaces[] = {
      " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1C",   "\x1D",   "\x1E",   "\x1F",
      "\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
      "\u2007", "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};
  std::string_view rest = text;
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view space : kSpaces)
      if (rest.ends_with(space)) {
        rest.remove_suffix(space.size());
        again = true;
      }
  }
  return text.size() - rest.size();
}

TokenId prefix_token(const Model& model) {
  const std::optional<int64_t>& bos = model.config().bos_token_id;
  if (bos && *bos >= 0 && *bos < model.config().vocab_size) return static_cast<TokenId>(*bos);
  return model.end_tokens().empty() ? 0 : model.end_tokens().front();
}

}  // namespace

Result<ScoreSpan> split_span(const Model& model, std::string_view context, std::string_view continuation,
                             bool add_special) {
  const Tokenizer& tokenizer = model.tokenizer();
  const size_t spaces = trailing_space(context);
  const std::string moved = std::string(context.substr(context.size() - spaces)) + std::string(continuation);
  const std::string_view kept = context.substr(0, context.size() - spaces);
  ScoreSpan span;
  size_t given = 1;
  if (kept.empty()) {
    span.tokens = tokenizer.encode(moved, false);
    const TokenId prefix = prefix_token(model);
    if (span.tokens.empty() || span.tokens.front() != prefix) span.tokens.insert(span.tokens.begin(), prefix);
  } else {
    span.tokens = tokenizer.encode(std::string(kept) + moved, add_special);
    given = tokenizer.encode(kept, add_special).size();
  }
  const int64_t context_length = model.config().context_length();
  span.scored = static_cast<int64_t>(span.tokens.size()) - static_cast<int64_t>(given);
  if (span.scored < 1 || span.scored > context_length)
    return fail({.what = span.scored < 1 ? "a continuation has no token of its own" : "a continuation is too long",
                 .found = fmt::format("'{}', {} tokens", continuation, std::max<int64_t>(0, span.scored)),
                 .expected = fmt::format("1 to {} tokens", context_length)});
  const auto most = static_cast<size_t>(context_length) + 1;
  if (span.tokens.size() > most) {
    span.truncated = static_cast<int64_t>(span.tokens.size() - most);
    span.tokens.erase(span.tokens.begin(), span.tokens.begin() + span.truncated);
  }
  return span;
}

namespace {

class SpanScorer {
 public:
  SpanScorer(Model& model, std::span<const ScoreSpan> spans, int64_t kv_tokens)
      : model_(&model),
        spans_(spans),
        pool_(model.make_kv_cache(kv_tokens)),
        runner_(model, pool_.layers()),
        pages_(spans.size()),
        scores_(spans.size()) {}

  void add(size_t i) {
    const ScoreSpan& span = spans_[i];
    const int64_t rows = static_cast<int64_t>(span.tokens.size()) - 1;  // nothing follows the last token
    int64_t position = reserve(i, rows);
    const int64_t first_logits = rows - span.scored;
    while (position < rows) {
      if (step_.num_rows >= kStepRows || step_.num_logits >= kStepLogits) run(i);
      int64_t take = std::min(rows - position, kStepRows - step_.num_rows);
      take = std::min(take, std::max<int64_t>(0, first_logits - position) + kStepLogits - step_.num_logits);
      const int64_t skip = std::clamp<int64_t>(first_logits - position, 0, take);
      step_.shares.push_back(
          {.id = i,
           .position = position,
           .num_rows = take,
           .tokens = std::span(span.tokens).subspan(static_cast<size_t>(position), static_cast<size_t>(take)),
           .pages = pages_[i],
           .first_logits = skip});
      for (int64_t row = skip; row < take; ++row)
        wanted_.push_back({i, span.tokens[static_cast<size_t>(position + row + 1)]});
      step_.num_rows += take;
      step_.num_logits += take - skip;
      position += take;
    }
  }

  // Computes what add() put together. Pages of spans before `open` are given back, but for the last of them, whose
  // prefix the next may share.
  void run(size_t open) {
    if (step_.empty()) return;
    runner_.run(step_);
    std::vector<SpanScore> rows(wanted_.size());
    model_->pool().parallel_items(static_cast<int64_t>(wanted_.size()), [&](int64_t r, int) {
      const std::span<const float> logits = runner_.logits(r);
      const auto target = static_cast<size_t>(wanted_[static_cast<size_t>(r)].next);
      SpanScore& row = rows[static_cast<size_t>(r)];
      row.loglikelihood = logits[target] - log_sum_exp(logits);
      row.greedy = static_cast<size_t>(argmax(logits)) == target;
      int32_t likelier = 0;
      for (const float logit : logits) likelier += logit > logits[target] ? 1 : 0;
      row.worst_rank = likelier;
    });
    for (size_t r = 0; r < rows.size(); ++r) {
      SpanScore& score = scores_[wanted_[r].span];
      score.loglikelihood += rows[r].loglikelihood;
      score.greedy = score.greedy && rows[r].greedy;
      score.worst_rank = std::max(score.worst_rank, rows[r].worst_rank);
    }
    step_ = {};
    wanted_.clear();
    for (; held_ + 1 < open; ++held_) release(held_);
  }

  std::vector<SpanScore> take_scores() { return std::move(scores_); }

 private:
  struct Wanted {
    size_t span;
    TokenId next;
  };

  // Pages for span i; returns its first position that must be computed.
  int64_t reserve(size_t i, int64_t rows) {
    std::vector<int32_t>& pages = pages_[i];
    int64_t shared = i > 0 && !pages_[i - 1].empty() ? common_pages(i) : 0;
    if (shared > 0) pages.assign(pages_[i - 1].begin(), pages_[i - 1].begin() + shared);
    for (const int32_t page : pages) ++uses_[page];
    const int64_t needed = (rows + kPageTokens - 1) / kPageTokens;
    if (!grow(pages, needed - shared)) {
      run(i);
      if (!grow(pages, needed - shared)) {  // without the last one's prefix all pages are free
        release(i);
        if (i > 0) release(i - 1);
        held_ = i;
        shared = 0;
        OCTAVO_CHECK(grow(pages, needed), "{} pages", needed);
      }
    }
    return shared * kPageTokens;
  }

  // Whole pages that span i has in common with the one before it, up to the first row whose logits are wanted.
  int64_t common_pages(size_t i) const {
    const std::vector<TokenId>&a = spans_[i - 1].tokens, &b = spans_[i].tokens;
    const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).second;
    const int64_t given = static_cast<int64_t>(b.size()) - 1 - spans_[i].scored;
    const int64_t computed = static_cast<int64_t>(a.size()) - 1;  // the last token of a span is not
    return std::min({int64_t{end - b.begin()}, given, computed}) / kPageTokens;
  }

  bool grow(std::vector<int32_t>& pages, int64_t count) {
    const size_t before = pages.size();
    if (!pool_.allocate(count, pages)) return false;
    for (size_t p = before; p < pages.size(); ++p) uses_[pages[p]] = 1;
    return true;
  }

  void release(size_t i) {
    for (const int32_t page : pages_[i])
      if (--uses_[page] == 0) pool_.release({&page, 1});
    pages_[i].clear();
  }

  Model* model_;
  std::span<const ScoreSpan> spans_;
  PagePool pool_;
  ModelRunner runner_;
  Step step_;
  std::vector<Wanted> wanted_;               // of the step, in the order of its logits
  std::vector<std::vector<int32_t>> pages_;  // of each span
  std::map<int32_t, int> uses_;              // spans that hold a page
  size_t held_ = 0;                          // spans before it hold no pages
  std::vector<SpanScore> scores_;
};

Result<void> check_spans(const Model& model, std::span<const ScoreSpan> spans) {
  const ModelConfig& config = model.config();
  for (const ScoreSpan& span : spans) {
    const auto length = static_cast<int64_t>(span.tokens.size());
    OCTAVO_CHECK(span.scored >= 1 && span.scored < length, "{} of {} tokens scored", span.scored, length);
    if (length > config.context_length() + 1)
      return fail({.what = "the text is longer than the model's context",
                   .found = fmt::format("{} tokens", length),
                   .expected = fmt::format("at most {}", config.context_length() + 1)});
    for (const TokenId id : span.tokens)
      if (id < 0 || id >= config.vocab_size)
        return fail({.what = "token id outside the vocabulary",
                     .found = fmt::format("{}", id),
                     .expected = fmt::format("0 to {}", config.vocab_size - 1)});
  }
  return {};
}

}  // namespace

Result<std::vector<SpanScore>> score_spans(Model& model, std::span<const ScoreSpan> spans,
                                           const std::function<void(int64_t)>& progress) {
  OCTAVO_TRY(check_spans(model, spans));
  size_t longest = 1;
  for (const ScoreSpan& span : spans) longest = std::max(longest, span.tokens.size());
  SpanScorer scorer(model, spans, 2 * static_cast<int64_t>(longest) + 8 * kStepRows);
  for (size_t i = 0; i < spans.size(); ++i) {
    scorer.add(i);
    if (progress) progress(static_cast<int64_t>(i) + 1);
  }
  scorer.run(spans.size());
  std::vector<SpanScore> scores = scorer.take_scores();
  for (const SpanScore& score : scores)
    if (!std::isfinite(score.loglikelihood))
      return fail({.what = "the model's logits are not finite", .where = model.checkpoint().path().string()});
  return scores;
}

}  // namespace octavo
