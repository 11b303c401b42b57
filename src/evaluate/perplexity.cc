#include "evaluate/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/sequence.h"
#include "kernels/math.h"

namespace octavo {

namespace {

// Sum of exp(x - highest): FP32 inside runs of 256 terms (the compiler makes them vectors), double over the runs.
double sum_of_exponentials(std::span<const float> logits, float highest) {
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += 256) {
    const size_t count = std::min<size_t>(256, logits.size() - begin);
    float terms[256];
    for (size_t i = 0; i < count; ++i) {
      const float t = std::max((logits[begin + i] - highest) * kLog2E, -126.0f), n = std::nearbyint(t), f = t - n;
      float p = kExp2Coefficients[6];
      for (int c = 5; c >= 0; --c) p = std::fma(p, f, kExp2Coefficients[c]);
      terms[i] = p * bits_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
    }
    float lanes[16] = {};
    for (size_t i = 0; i + 16 <= count; i += 16)
      for (size_t l = 0; l < 16; ++l) lanes[l] += terms[i + l];
    for (size_t i = count / 16 * 16; i < count; ++i) lanes[0] += terms[i];
    for (const float lane : lanes) total += lane;
  }
  return total;
}

}  // namespace

double negative_log_likelihood(std::span<const float> logits, TokenId target) {
  const float highest = *std::max_element(logits.begin(), logits.end());
  return std::log(sum_of_exponentials(logits, highest)) + highest - logits[static_cast<size_t>(target)];
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
  return total;
}

}  // namespace

Result<PerplexityResult> perplexity(Model& model, std::string_view text, const PerplexityOptions& options,
                                    const std::function<void(int64_t, int64_t, double)>& progress) {
  if (options.context < 2 || options.context > model.config().context_length())
    return fail({.what = "context is out of range",
                 .where = "--context",
                 .found = fmt::format("{}", options.context),
                 .expected = fmt::format("2 to {}, the model's context", model.config().context_length())});
  const std::vector<TokenId> tokens = model.tokenizer().encode(text, false);
  const int64_t available = static_cast<int64_t>(tokens.size()) / options.context;
  if (available == 0)
    return fail({.what = "the text is shorter than one window",
                 .found = fmt::format("{} tokens", tokens.size()),
                 .expected = fmt::format("at least {}", options.context),
                 .remedy = "give a longer text, or a smaller --context"});
  PerplexityResult result{.tokens = static_cast<int64_t>(tokens.size())};
  result.windows = options.windows > 0 ? std::min(available, options.windows) : available;
  result.tokens_scored = result.windows * (options.context - 1);

  const auto start = std::chrono::steady_clock::now();
  PagePool kv = model.make_kv_cache(options.context);
  Sequence sequence(model, kv);
  double total = 0, squares = 0;
  for (int64_t w = 0; w < result.windows; ++w) {
    const auto window =
        std::span(tokens).subspan(static_cast<size_t>(w * options.context), static_cast<size_t>(options.context));
    OCTAVO_ASSIGN(const double nll, window_nll(model, sequence, window));
    const double mean = nll / static_cast<double>(options.context - 1);
    total += mean;
    squares += mean * mean;
    if (progress) progress(w + 1, result.windows, std::exp(total / static_cast<double>(w + 1)));
  }
  const auto n = static_cast<double>(result.windows);
  result.nll = total / n;
  result.perplexity = std::exp(result.nll);
  if (n > 1) result.nll_standard_error = std::sqrt(std::max(0.0, squares / n - result.nll * result.nll) / (n - 1));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace octavo
