#include "evaluate/speed.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"
#include "engine/sequence.h"

namespace octavo {
namespace {

std::vector<TokenId> random_tokens(const Model& model, int64_t count) {
  Random random(1);
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& id : tokens) id = static_cast<TokenId>(random.below(static_cast<uint64_t>(model.config().vocab_size)));
  return tokens;
}

struct Samples {
  std::vector<double> prefill_seconds, decode_seconds, greedy_seconds, prefill_share, decode_share, greedy_share,
      greedy_bytes, read, fma, dot, int8;
};

// Tokens one by one after `position` tokens: seconds of a step, and bytes of the head that it read.
struct Decoded {
  double seconds = 0, head_bytes = 0;
};
Result<Decoded> decode(Model& model, Sequence& sequence, std::span<const TokenId> tokens, int64_t position,
                       bool highest) {
  sequence.truncate(position);
  Decoded out;
  const Stopwatch watch;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (highest) {
      OCTAVO_TRY(sequence.feed_highest(tokens.subspan(i, 1), model.config().vocab_size));
      out.head_bytes += static_cast<double>(model.decoder().greedy_head()->bytes_read());
    } else {
      OCTAVO_TRY(sequence.feed(tokens.subspan(i, 1)));
    }
  }
  out.seconds = watch.seconds() / static_cast<double>(tokens.size());
  out.head_bytes /= static_cast<double>(tokens.size());
  return out;
}

SpeedFigure figure(const std::vector<double>& seconds, const std::vector<double>& share, double tokens) {
  return {.tokens_per_second = tokens / median(seconds), .spread = spread(seconds), .roofline_share = median(share)};
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double spread(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return (*high - *low) / median(values);
}

Result<void> check_bench_tokens(const Model& model, int64_t depth, int64_t prompt, int64_t generate) {
  constexpr int64_t kMost = int64_t{1} << 40;  // far past any context; sums of them do not overflow
  struct Count {
    const char* flag;
    int64_t value, least;
  };
  for (const Count& count :
       {Count{"--depth", depth, 0}, Count{"--prompt", prompt, 1}, Count{"--generate", generate, 1}})
    if (count.value < count.least || count.value > kMost)
      return fail({.what = "a number of tokens is out of range",
                   .where = count.flag,
                   .found = fmt::format("{}", count.value),
                   .expected = fmt::format("at least {}", count.least)});
  const int64_t tokens = depth + prompt + generate;
  if (tokens <= model.config().context_length()) return {};
  return fail({.what = "the measured text is longer than the model's context",
               .where = "--depth, --prompt and --generate",
               .found = fmt::format("{} tokens", tokens),
               .expected = fmt::format("at most {}", model.config().context_length())});
}

Result<SpeedResult> measure_speed(Model& model, const SpeedOptions& options,
                                  const std::function<void(int, int)>& progress) {
  OCTAVO_TRY(check_bench_tokens(model, options.depth, options.prompt, options.generate));
  if (options.repeat < 1) return fail({.what = "nothing is repeated", .where = "--repeat", .expected = "at least 1"});
  const int64_t total = options.depth + options.prompt + options.generate;
  const int64_t before_decode = options.decode_after_prompt ? options.depth + options.prompt : options.depth + 1;
  PagePool kv = model.make_kv_cache(total);
  Sequence sequence(model, kv);
  const std::vector<TokenId> tokens = random_tokens(model, total);
  const std::span<const TokenId> all(tokens);
  OCTAVO_TRY(sequence.feed(all.first(static_cast<size_t>(options.depth))));

  const TokenCost cost = token_cost(model);
  const auto prompt = static_cast<double>(options.prompt), depth = static_cast<double>(options.depth);
  const double prefill_flops =
      prompt * (cost.linear_flops + cost.attention_flops * (depth + prompt / 2)) + cost.head_flops;
  const double context = static_cast<double>(before_decode) + static_cast<double>(options.generate) / 2;
  SpeedResult result;
  Samples samples;
  for (int repeat = -1; repeat < options.repeat; ++repeat) {  // the first round warms caches and scratch memory
    if (progress) progress(repeat + 1, options.repeat + 1);
    const Roofline roofline = measure_roofline(model.pool());
    sequence.truncate(options.depth);
    Stopwatch prefill_watch;
    OCTAVO_TRY(sequence.feed(all.subspan(static_cast<size_t>(options.depth), static_cast<size_t>(options.prompt))));
    const double prefill_seconds = prefill_watch.seconds();
    const auto generated = all.subspan(static_cast<size_t>(before_decode), static_cast<size_t>(options.generate));
    OCTAVO_ASSIGN(const Decoded decoded, decode(model, sequence, generated, before_decode, false));
    Decoded greedy;
    if (model.decoder().greedy_head() != nullptr) {
      OCTAVO_ASSIGN(greedy, decode(model, sequence, generated, before_decode, true));
    }
    if (repeat < 0) continue;
    result.decode_bytes_weights = cost.weight_bytes(1);
    result.decode_bytes_kv = cost.kv_bytes * context;
    samples.prefill_seconds.push_back(prefill_seconds);
    samples.decode_seconds.push_back(decoded.seconds);
    samples.prefill_share.push_back(prefill_flops / prefill_seconds * 1e-9 /
                                    compute_peak(model, roofline, result.prefill_bound));
    samples.decode_share.push_back((cost.weight_bytes(1) + cost.kv_bytes * context) / decoded.seconds * 1e-9 /
                                   roofline.read_gb_s);
    if (greedy.seconds > 0) {
      samples.greedy_seconds.push_back(greedy.seconds);
      samples.greedy_bytes.push_back(cost.weight_bytes(1) - cost.head_bytes + greedy.head_bytes +
                                     cost.kv_bytes * context);
      samples.greedy_share.push_back(samples.greedy_bytes.back() / greedy.seconds * 1e-9 / roofline.read_gb_s);
    }
    samples.read.push_back(roofline.read_gb_s);
    samples.fma.push_back(roofline.fma_gflops);
    samples.dot.push_back(roofline.bf16_dot_gflops);
    samples.int8.push_back(roofline.int8_gops);
  }
  result.prefill = figure(samples.prefill_seconds, samples.prefill_share, prompt);
  result.decode = figure(samples.decode_seconds, samples.decode_share, 1);
  result.prefill.gflop_per_token = prefill_flops / prompt * 1e-9;
  result.prefill.gb_per_token = cost.weight_bytes(prompt) / prompt * 1e-9;
  result.prefill.achieved_gflops = result.prefill.gflop_per_token * result.prefill.tokens_per_second;
  result.decode.gb_per_token = (result.decode_bytes_weights + result.decode_bytes_kv) * 1e-9;
  result.decode.gflop_per_token = (cost.linear_flops + cost.head_flops + cost.attention_flops * context) * 1e-9;
  result.decode.achieved_gb_s = result.decode.gb_per_token * result.decode.tokens_per_second;
  if (!samples.greedy_seconds.empty()) {
    SpeedFigure& greedy = result.greedy.emplace(figure(samples.greedy_seconds, samples.greedy_share, 1));
    greedy.gb_per_token = median(samples.greedy_bytes) * 1e-9;
    greedy.achieved_gb_s = greedy.gb_per_token * greedy.tokens_per_second;
  }
  result.decode.achieved_gflops = result.decode.gflop_per_token * result.decode.tokens_per_second;
  result.roofline = {median(samples.read), median(samples.fma), median(samples.dot), median(samples.int8)};
  result.ttft_seconds = prompt / result.prefill.tokens_per_second;
  result.tpot_seconds = 1 / result.decode.tokens_per_second;
  return result;
}

}  // namespace octavo
