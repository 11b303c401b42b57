// Perplexity over fixed windows of a text.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "engine/model.h"
#include "evaluate/section_log.h"

namespace octavo {

struct PerplexityOptions {
  int64_t context = 1024;  // tokens of a window
  int64_t windows = 0;     // 0: all
};

struct PerplexityResult {
  double perplexity = 0;
  double nll = 0;                                      // mean negative log-likelihood, nats
  double nll_standard_error = 0;                       // over the windows' means
  int64_t tokens = 0, windows = 0, tokens_scored = 0;  // of the text; used; scored
  double seconds = 0;
  int64_t windows_measured = 0;  // in these seconds; the others are a log's
};

// A text's tokens (no special tokens added) cut into windows of `context` tokens, the last short one dropped.
struct TextWindows {
  std::vector<TokenId> tokens;
  int64_t context = 0, count = 0;

  std::span<const TokenId> window(int64_t i) const {
    return std::span(tokens).subspan(static_cast<size_t>(i * context), static_cast<size_t>(context));
  }
};
// Error: a context that the model does not have, a text shorter than one window.
Result<TextWindows> cut_windows(const Tokenizer& tokenizer, const ModelConfig& config, std::string_view text,
                                const PerplexityOptions& options);
Result<TextWindows> cut_windows(const Model& model, std::string_view text, const PerplexityOptions& options);

// Each window starts from an empty cache; every token but a window's first is scored; exp of the mean negative
// log-likelihood over all. `log`: of the windows, gone on with.
Result<PerplexityResult> perplexity(
    Model& model, std::string_view text, const PerplexityOptions& options,
    const std::function<void(int64_t done, int64_t total, double running)>& progress = {}, SectionLog* log = nullptr);

// -log softmax(logits)[target]
double negative_log_likelihood(std::span<const float> logits, TokenId target);

// Mean of values and the standard error of that mean: NaN for fewer than two, which say nothing of it.
struct MeanError {
  double mean = 0, standard_error = 0;
};
MeanError mean_error(std::span<const double> values);

}  // namespace octavo
