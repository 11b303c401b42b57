// Two models on one text in lock step: chunk by chunk, no logits kept.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "evaluate/perplexity.h"

namespace octavo {

// What two rows of logits say of each other at a position whose next token is known.
struct RowDivergence {
  double kl = 0;                           // KL(base || candidate), nats; NaN where a row is not finite
  double base_nll = 0, candidate_nll = 0;  // of the next token
  bool same_top = false;                   // the most likely token is the same (the lowest id among equals)
};
// Exponentials and their sums in the order of engine/exponentials.h, so that each NLL is negative_log_likelihood()'s.
RowDivergence compare_rows(std::span<const float> base, std::span<const float> candidate, TokenId next);

struct CompareResult {
  int64_t windows = 0, tokens_scored = 0;
  // Of KL(base || candidate) over the scored positions, nats; the standard error over the windows' means.
  double kl_mean = 0, kl_standard_error = 0, kl_median = 0, kl_p99 = 0, kl_p999 = 0, kl_max = 0;
  int64_t kl_max_token = 0;  // index in the text of the token that was predicted there
  double same_top = 0;       // share of positions
  double base_perplexity = 0, candidate_perplexity = 0;
  // Mean of candidate NLL - base NLL; paired: the standard error over the windows' differences.
  double nll_difference = 0, nll_difference_standard_error = 0;
  double seconds = 0, base_seconds = 0, candidate_seconds = 0;  // all; forward passes of each

  // candidate_perplexity / base_perplexity - 1, and its standard error by the delta method.
  double perplexity_change() const;
  double perplexity_change_standard_error() const;
};

// CompareResult from its rows, window by window.
class CompareTotals {
 public:
  // The scored positions of the next window, in order. Of a row that is not finite: its index, and nothing is added.
  std::optional<size_t> add(std::span<const RowDivergence> rows);
  // Without seconds.
  CompareResult result(int64_t context) const;
  double mean_kl() const { return mean_error(window_kl_).mean; }

 private:
  std::vector<double> kl_, window_kl_, window_nll_, window_difference_;
  int64_t same_top_ = 0;
};

// Over the windows that perplexity() takes. Error: tokenizers or vocabularies that differ, logits that are not finite
// (names the model and the token).
Result<CompareResult> compare(Model& base, Model& candidate, std::string_view text, const PerplexityOptions& options,
                              const std::function<void(int64_t done, int64_t total, double kl)>& progress = {});

}  // namespace octavo
