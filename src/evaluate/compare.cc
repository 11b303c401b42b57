#include "evaluate/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/exponentials.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace octavo {
namespace {

constexpr size_t kRun = 256;            // of engine/exponentials.h
constexpr int64_t kCompareChunk = 128;  // rows of logits that are held of each model

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The smallest value that at least a share of `sorted` does not exceed.
double percentile(std::span<const double> sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

RowDivergence compare_rows(std::span<const float> base, std::span<const float> candidate, TokenId next) {
  const auto base_top = static_cast<size_t>(argmax(base)), candidate_top = static_cast<size_t>(argmax(candidate));
  const float base_highest = base[base_top], candidate_highest = candidate[candidate_top];
  double base_sum = 0, candidate_sum = 0, weighted = 0;
  for (size_t begin = 0; begin < base.size(); begin += kRun) {
    const size_t count = std::min(kRun, base.size() - begin);
    const auto b = base.subspan(begin, count), c = candidate.subspan(begin, count);
    float p[kRun], q[kRun];
    exponentials(b, base_highest, 1.0f, {p, count});
    exponentials(c, candidate_highest, 1.0f, {q, count});
    base_sum += sum_of({p, count});
    candidate_sum += sum_of({q, count});
    // NaN where a logit is not finite, since 0 x infinity is.
    for (size_t i = 0; i < count; ++i) q[i] = p[i] * ((b[i] - base_highest) - (c[i] - candidate_highest));
    weighted += sum_of({q, count});
  }
  const double base_log = std::log(base_sum), candidate_log = std::log(candidate_sum);
  const auto target = static_cast<size_t>(next);
  RowDivergence row;
  row.kl = weighted / base_sum - base_log + candidate_log;
  if (row.kl < 0) row.kl = 0;  // rounding; NaN stays
  row.base_nll = base_log + base_highest - base[target];
  row.candidate_nll = candidate_log + candidate_highest - candidate[target];
  row.same_top = base_top == candidate_top;
  return row;
}

std::optional<size_t> CompareTotals::add(std::span<const RowDivergence> rows) {
  for (size_t i = 0; i < rows.size(); ++i)
    if (!std::isfinite(rows[i].base_nll) || !std::isfinite(rows[i].candidate_nll) || std::isnan(rows[i].kl)) return i;
  double kl = 0, nll = 0, difference = 0;
  for (const RowDivergence& row : rows) {
    kl += row.kl;
    nll += row.base_nll;
    difference += row.candidate_nll - row.base_nll;
    same_top_ += row.same_top ? 1 : 0;
    kl_.push_back(row.kl);
  }
  const auto n = static_cast<double>(rows.size());
  window_kl_.push_back(kl / n);
  window_nll_.push_back(nll / n);
  window_difference_.push_back(difference / n);
  return std::nullopt;
}

CompareResult CompareTotals::result(int64_t context) const {
  CompareResult out;
  out.windows = static_cast<int64_t>(window_kl_.size());
  out.tokens_scored = static_cast<int64_t>(kl_.size());
  const auto most = std::max_element(kl_.begin(), kl_.end());
  const int64_t at = most - kl_.begin(), scored = context - 1;
  out.kl_max_token = at / scored * context + at % scored + 1;
  const MeanError kl = mean_error(window_kl_), difference = mean_error(window_difference_);
  out.kl_mean = kl.mean;
  out.kl_standard_error = kl.standard_error;
  out.nll_difference = difference.mean;
  out.nll_difference_standard_error = difference.standard_error;
  out.base_perplexity = std::exp(mean_error(window_nll_).mean);
  out.candidate_perplexity = out.base_perplexity * std::exp(difference.mean);
  out.same_top = static_cast<double>(same_top_) / static_cast<double>(kl_.size());
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  out.kl_median = percentile(sorted, 0.5);
  out.kl_p99 = percentile(sorted, 0.99);
  out.kl_p999 = percentile(sorted, 0.999);
  out.kl_max = sorted.back();
  return out;
}

double CompareResult::perplexity_change() const {
  return std::exp(nll_difference) - 1;
}

double CompareResult::perplexity_change_standard_error() const {
  return std::exp(nll_difference) * nll_difference_standard_error;
}

namespace {

Result<TextWindows> common_windows(const Model& base, const Model& candidate, std::string_view text,
                                   const PerplexityOptions& options) {
  if (base.config().vocab_size != candidate.config().vocab_size)
    return fail({.what = "the models have different vocabularies",
                 .where = candidate.checkpoint().path().string(),
                 .found = fmt::format("{} tokens", candidate.config().vocab_size),
                 .expected = fmt::format("{}, as in {}", base.config().vocab_size, base.checkpoint().path().string())});
  OCTAVO_ASSIGN(TextWindows windows, cut_windows(base, text, options));
  OCTAVO_ASSIGN(const TextWindows other, cut_windows(candidate, text, options));
  if (windows.tokens != other.tokens) {
    const auto at =
        std::mismatch(windows.tokens.begin(), windows.tokens.end(), other.tokens.begin(), other.tokens.end());
    return fail({.what = "the models' tokenizers cut the text differently",
                 .where = candidate.checkpoint().path().string(),
                 .found = fmt::format("a difference at token {}", at.first - windows.tokens.begin()),
                 .remedy = "compare models that share a tokenizer"});
  }
  return windows;
}

// One pass over the windows.
class LockStep {
 public:
  LockStep(Model& base, Model& candidate, const TextWindows& windows)
      : base_(&base),
        candidate_(&candidate),
        windows_(&windows),
        base_kv_(base.make_kv_cache(windows.context)),
        candidate_kv_(candidate.make_kv_cache(windows.context)),
        base_sequence_(base, base_kv_),
        candidate_sequence_(candidate, candidate_kv_) {}

  Result<void> window(int64_t index) {
    const std::span<const TokenId> tokens = windows_->window(index);
    rows_.assign(tokens.size() - 1, {});
    base_sequence_.truncate(0);
    candidate_sequence_.truncate(0);
    for (size_t begin = 0; begin < tokens.size(); begin += kCompareChunk)
      OCTAVO_TRY(chunk(tokens, begin, std::min<size_t>(kCompareChunk, tokens.size() - begin)));
    return add(index);
  }

  CompareResult result() const {
    CompareResult out = totals_.result(windows_->context);
    out.base_seconds = base_seconds_;
    out.candidate_seconds = candidate_seconds_;
    return out;
  }
  double running_kl() const { return totals_.mean_kl(); }

 private:
  struct Rows {
    const float* data = nullptr;
    int64_t stride = 0;
    std::span<const float> row(int64_t i, size_t vocab) const { return {data + i * stride, vocab}; }
  };
  // The logits stay in the sequence's memory until its next step.
  static Result<Rows> logits_of(Sequence& sequence, std::span<const TokenId> part, double& seconds) {
    const auto start = Clock::now();
    Rows rows;
    OCTAVO_TRY(sequence.feed_all_logits(
        part,
        [&](int64_t, const float* data, int64_t, int64_t stride) {
          rows = {data, stride};
        },
        kCompareChunk));
    seconds += seconds_since(start);
    return rows;
  }

  Result<void> chunk(std::span<const TokenId> tokens, size_t begin, size_t count) {
    const auto part = tokens.subspan(begin, count);
    OCTAVO_ASSIGN(const Rows base, logits_of(base_sequence_, part, base_seconds_));
    OCTAVO_ASSIGN(const Rows candidate, logits_of(candidate_sequence_, part, candidate_seconds_));
    const auto vocab = static_cast<size_t>(base_->config().vocab_size);
    base_->pool().parallel_items(static_cast<int64_t>(count), [&](int64_t i, int) {
      const size_t at = begin + static_cast<size_t>(i);
      if (at + 1 < tokens.size()) rows_[at] = compare_rows(base.row(i, vocab), candidate.row(i, vocab), tokens[at + 1]);
    });
    return {};
  }

  Result<void> add(int64_t index) {
    const std::optional<size_t> broken_row = totals_.add(rows_);
    if (!broken_row) return {};
    const Model& broken = std::isfinite(rows_[*broken_row].base_nll) ? *candidate_ : *base_;
    return fail({.what = "a model's logits are not finite",
                 .where = fmt::format("{}, token {} of the text", broken.checkpoint().path().string(),
                                      index * windows_->context + static_cast<int64_t>(*broken_row)),
                 .remedy = "look for NaN or infinite weights and scales with `octavo inspect --tensors`"});
  }

  Model *base_, *candidate_;
  const TextWindows* windows_;
  PagePool base_kv_, candidate_kv_;
  Sequence base_sequence_, candidate_sequence_;
  std::vector<RowDivergence> rows_;  // of the window at work
  CompareTotals totals_;
  double base_seconds_ = 0, candidate_seconds_ = 0;
};

}  // namespace

Result<CompareResult> compare(Model& base, Model& candidate, std::string_view text, const PerplexityOptions& options,
                              const std::function<void(int64_t, int64_t, double)>& progress) {
  OCTAVO_ASSIGN(const TextWindows windows, common_windows(base, candidate, text, options));
  const auto start = Clock::now();
  LockStep steps(base, candidate, windows);
  for (int64_t w = 0; w < windows.count; ++w) {
    OCTAVO_TRY(steps.window(w));
    if (progress) progress(w + 1, windows.count, steps.running_kl());
  }
  CompareResult result = steps.result();
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace octavo
