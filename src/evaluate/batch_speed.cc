#include "evaluate/batch_speed.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"
#include "engine/cost.h"
#include "engine/runner.h"
#include "evaluate/speed.h"

namespace octavo {
namespace {

// The sequences of one measurement: their tokens and pages.
class Streams {
 public:
  Streams(Model& model, const BatchSpeedOptions& options)
      : model_(model),
        options_(options),
        length_(options.depth + options.prompt + options.generate),
        pool_(model.make_kv_cache(options.batch * pages_each() * kPageTokens)),
        runner_(model, pool_.layers()) {
    Random random(1);
    const auto vocabulary = static_cast<uint64_t>(model.config().vocab_size);
    for (int64_t i = 0; i < options.batch * length_; ++i)
      tokens_.push_back(static_cast<TokenId>(random.below(vocabulary)));
    pages_.resize(static_cast<size_t>(options.batch));
    for (std::vector<int32_t>& pages : pages_) OCTAVO_CHECK(pool_.allocate(pages_each(), pages));
  }

  // Positions [begin, end) of every sequence, as many in a step as `chunk` rows hold, a longer prompt in pieces. What
  // stood there before is overwritten.
  void prefill(int64_t begin, int64_t end) {
    Step step;
    for (int64_t s = 0; s < options_.batch; ++s)
      for (int64_t at = begin; at < end;) {
        const int64_t rows = std::min(end - at, options_.chunk - step.num_rows);
        add(step, s, at, rows, at + rows == end);
        at += rows;
        if (step.num_rows == options_.chunk) run(step);
      }
    if (!step.empty()) run(step);
  }
  void decode(int64_t position) {
    Step step;
    for (int64_t s = 0; s < options_.batch; ++s) add(step, s, position, 1, true);
    run(step);
  }

 private:
  int64_t pages_each() const { return (length_ + kPageTokens - 1) / kPageTokens; }
  void add(Step& step, int64_t sequence, int64_t position, int64_t rows, bool logits) {
    const auto first = static_cast<size_t>(sequence * length_ + position);
    step.shares.push_back({.id = static_cast<RequestId>(sequence),
                           .position = position,
                           .num_rows = rows,
                           .tokens = std::span<const TokenId>(tokens_).subspan(first, static_cast<size_t>(rows)),
                           .pages = pages_[static_cast<size_t>(sequence)],
                           .first_logits = logits ? rows - 1 : rows});
    step.num_rows += rows;
    step.num_logits += logits ? 1 : 0;
  }
  void run(Step& step) {
    runner_.run(step, model_.config().vocab_size);
    step = {};
  }

  const Model& model_;
  const BatchSpeedOptions& options_;
  int64_t length_;
  PagePool pool_;
  ModelRunner runner_;
  std::vector<TokenId> tokens_;              // [batch, length]
  std::vector<std::vector<int32_t>> pages_;  // of each sequence
};

}  // namespace

Result<void> check_batch_speed(const Model& model, const BatchSpeedOptions& options) {
  if (options.repeat < 1) return fail({.what = "nothing is repeated", .where = "--repeat", .expected = "at least 1"});
  if (options.batch < 1 || options.batch > 1024)
    return fail({.what = "batch is out of range",
                 .where = "--batch",
                 .found = fmt::format("{}", options.batch),
                 .expected = "1 to 1024"});
  return check_bench_tokens(model, options.depth, options.prompt, options.generate);
}

Result<BatchSpeedResult> measure_batch_speed(Model& model, const BatchSpeedOptions& options,
                                             const std::function<void(int, int)>& progress) {
  OCTAVO_TRY(check_batch_speed(model, options));
  Streams together(model, options);
  const TokenCost cost = token_cost(model);
  const auto batch = static_cast<double>(options.batch), steps = static_cast<double>(options.generate);
  const int64_t decode_at = options.depth + options.prompt;
  const double context = static_cast<double>(decode_at) + steps / 2;
  if (options.depth > 0) together.prefill(0, options.depth);
  std::vector<double> prefill, decode, both, bytes, compute;
  const int warm = options.warm_up ? 1 : 0;  // its round warms caches and scratch memory
  for (int repeat = -warm; repeat < options.repeat; ++repeat) {
    if (progress) progress(repeat + warm, options.repeat + warm);
    const Roofline roofline = options.roofline ? measure_roofline(model.pool()) : Roofline{};
    Stopwatch watch;
    together.prefill(options.depth, decode_at);
    const double prefilled = watch.seconds();
    for (int64_t i = 0; i < options.generate; ++i) together.decode(decode_at + i);
    const double total = watch.seconds();
    if (repeat < 0) continue;
    prefill.push_back(prefilled);
    decode.push_back((total - prefilled) / steps);
    both.push_back(total);
    if (!options.roofline) continue;
    std::string bound;
    bytes.push_back((cost.weight_bytes(batch) + batch * context * cost.kv_bytes) * 1e-9 / roofline.read_gb_s);
    compute.push_back(batch * (cost.linear_flops + cost.head_flops + cost.attention_flops * context) * 1e-9 /
                      compute_peak(model, roofline, bound));
  }
  const double total = median(both), step = median(decode);
  return BatchSpeedResult{.prefill = batch * static_cast<double>(options.prompt) / median(prefill),
                          .decode = batch / step,
                          .output = batch * steps / total,
                          .spread = spread(both),
                          .step_seconds = step,
                          .byte_seconds = options.roofline ? median(bytes) : 0,
                          .compute_seconds = options.roofline ? median(compute) : 0};
}

}  // namespace octavo
