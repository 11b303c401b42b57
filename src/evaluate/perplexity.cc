#include "evaluate/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/exponentials.h"
#include "engine/sequence.h"

namespace octavo {

double negative_log_likelihood(std::span<const float> logits, TokenId target) {
  return log_sum_exp(logits) - logits[static_cast<size_t>(target)];
}

MeanError mean_error(std::span<const double> values) {
  MeanError result{.standard_error = NAN};
  if (values.empty()) return result;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) result.mean += value;
  result.mean /= n;
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.standard_error = std::sqrt(squares / (n - 1) / n);
  return result;
}

Result<TextWindows> cut_windows(const Model& model, std::string_view text, const PerplexityOptions& options) {
  return cut_windows(model.tokenizer(), model.config(), text, options);
}

Result<TextWindows> cut_windows(const Tokenizer& tokenizer, const ModelConfig& config, std::string_view text,
                                const PerplexityOptions& options) {
  if (options.context < 2 || options.context > config.context_length())
    return fail({.what = "context is out of range",
                 .where = "--context",
                 .found = fmt::format("{}", options.context),
                 .expected = fmt::format("2 to {}, the model's context", config.context_length())});
  TextWindows windows{.tokens = tokenizer.encode(text, false), .context = options.context};
  const int64_t available = static_cast<int64_t>(windows.tokens.size()) / options.context;
  if (available == 0)
    return fail({.what = "the text is shorter than one window",
                 .where = "--text",
                 .found = fmt::format("{} tokens", windows.tokens.size()),
                 .expected = fmt::format("at least {}", options.context),
                 .remedy = "give a longer text, or a smaller --context"});
  windows.count = options.windows > 0 ? std::min(available, options.windows) : available;
  return windows;
}

namespace {

// Sum of the negative log-likelihoods of window[1..].
Result<double> window_nll(Model& model, Sequence& sequence, std::span<const TokenId> window) {
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  std::vector<double> nll(window.size() - 1);
  sequence.truncate(0);
  OCTAVO_TRY(sequence.feed_all_logits(window, [&](int64_t first, const float* rows, int64_t count, int64_t stride) {
    model.pool().parallel_items(count, [&](int64_t i, int) {
      const auto next = static_cast<size_t>(first + i + 1);
      if (next < window.size()) nll[next - 1] = negative_log_likelihood({rows + i * stride, vocab}, window[next]);
    });
  }));
  double total = 0;
  for (const double value : nll) total += value;
  if (!std::isfinite(total))
    return fail({.what = "the model's logits are not finite",
                 .where = model.checkpoint().path().string(),
                 .remedy = "look for NaN or infinite weights and scales with `octavo inspect --tensors`"});
  return total;
}

}  // namespace

Result<PerplexityResult> perplexity(Model& model, std::string_view text, const PerplexityOptions& options,
                                    const std::function<void(int64_t, int64_t, double)>& progress, SectionLog* log) {
  OCTAVO_ASSIGN(const TextWindows windows, cut_windows(model, text, options));
  PerplexityResult result{.tokens = static_cast<int64_t>(windows.tokens.size()), .windows = windows.count};
  result.tokens_scored = windows.count * (windows.context - 1);

  const auto start = std::chrono::steady_clock::now();
  PagePool kv = model.make_kv_cache(options.context);
  Sequence sequence(model, kv);
  std::vector<double> means;
  double total = 0;
  for (int64_t w = 0; w < windows.count; ++w) {
    const std::string name = fmt::format("window {}", w);
    OCTAVO_ASSIGN(const Json measured, section(log, name, [&]() -> Result<Json> {
                    OCTAVO_ASSIGN(const double nll, window_nll(model, sequence, windows.window(w)));
                    ++result.windows_measured;
                    return Json{{"nll", nll / static_cast<double>(windows.context - 1)}};
                  }));
    if (!measured.is_object() || !measured.contains("nll") || !measured["nll"].is_number())
      return fail(log->refuse(name));
    means.push_back(measured["nll"].get<double>());
    total += means.back();
    if (progress) progress(w + 1, windows.count, std::exp(total / static_cast<double>(w + 1)));
  }
  const MeanError nll = mean_error(means);
  result.nll = nll.mean;
  result.nll_standard_error = nll.standard_error;
  result.perplexity = std::exp(result.nll);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace octavo
