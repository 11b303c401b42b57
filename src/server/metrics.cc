#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace octavo {
namespace {

// 0.5 ms to 16 minutes, 1-2-5.
std::vector<double> seconds_bounds() {
  std::vector<double> bounds = {0.0005};
  for (const double unit : {0.001, 0.01, 0.1, 1.0, 10.0, 100.0})
    for (const double step : {1.0, 2.0, 5.0}) bounds.push_back(unit * step);
  bounds.push_back(1000.0);
  return bounds;
}

std::vector<double> token_bounds() {
  std::vector<double> bounds;
  for (double bound = 1; bound <= 1 << 20; bound *= 2) bounds.push_back(bound);
  return bounds;
}

std::string escaped(std::string_view label) {
  std::string out;
  for (const char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void head(std::string& out, std::string_view name, std::string_view help, std::string_view type) {
  out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void print_number(std::string& out, std::string_view name, std::string_view help, std::string_view type,
                  std::string_view labels, double value) {
  head(out, name, help, type);
  out += fmt::format("{}{{{}}} {}\n", name, labels, std::isfinite(value) ? value : 0.0);
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

// Per step kind. Shares need the roofline.
void print_steps(std::string& out, const std::string& labels, const EngineStats& stats) {
  const auto each = [&](std::string_view name, std::string_view help, std::string_view type, auto value) {
    head(out, name, help, type);
    for (const auto& [kind, totals] : {std::pair{"prefill", &stats.prefill}, std::pair{"decode", &stats.decode}})
      out += fmt::format("{}{{{},step=\"{}\"}} {}\n", name, labels, kind, value(*totals));
  };
  each("octavo:steps_total", "Steps of the engine; \"prefill\" ones read a prompt and may decode beside it.", "counter",
       [](const StepTotals& t) { return t.steps; });
  each("octavo:step_tokens_total", "Tokens computed.", "counter", [](const StepTotals& t) { return t.rows; });
  each("octavo:step_seconds_total", "Time in steps.", "counter", [](const StepTotals& t) { return t.seconds; });
  each("octavo:bytes_per_token", "Bytes of weights and KV cache read per token computed.", "gauge",
       [](const StepTotals& t) { return ratio(t.bytes, static_cast<double>(t.rows)); });
  each("octavo:achieved_gigabytes_per_second", "Bytes of weights and KV cache read per second of steps.", "gauge",
       [](const StepTotals& t) { return ratio(t.bytes, t.seconds) / 1e9; });
  each("octavo:achieved_gigaflops", "Operations of linear layers and attention per second of steps.", "gauge",
       [](const StepTotals& t) { return ratio(t.operations, t.seconds) / 1e9; });
  if (!stats.roofline) return;
  each("octavo:roofline_share", "The least time by read bandwidth and arithmetic peak, over the time taken.", "gauge",
       [](const StepTotals& t) { return ratio(t.bound_seconds, t.bounded_seconds); });
  print_number(out, "octavo:read_gigabytes_per_second",
               "Read bandwidth of the weights, measured in the first idle moment.", "gauge", labels,
               stats.roofline->read_gb_s);
}

}  // namespace

void Histogram::observe(double value, uint64_t times) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
  count_ += times;
}

void Histogram::print(std::string& out, std::string_view name, std::string_view help, std::string_view labels) const {
  head(out, name, help, "histogram");
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
  }
  out += fmt::format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, count_);
  out += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, count_);
}

Metrics::Metrics()
    : first_token_(seconds_bounds()),
      inter_token_(seconds_bounds()),
      per_token_(seconds_bounds()),
      end_to_end_(seconds_bounds()),
      queue_(seconds_bounds()),
      prompt_length_(token_bounds()),
      generation_length_(token_bounds()),
      by_reason_{{"stop", 0}, {"length", 0}, {"abort", 0}, {"error", 0}} {}

void Metrics::tokens(SequenceTimes& times, double now, int64_t count) {
  if (count <= 0) return;
  int64_t gaps = count;
  if (times.first_token < 0) {
    times.first_token = times.last_token = now;
    first_token_.observe(now);
    --gaps;
  }
  if (gaps > 0) inter_token_.observe((now - times.last_token) / static_cast<double>(gaps), static_cast<uint64_t>(gaps));
  times.last_token = now;
  times.tokens += count;
  generation_tokens_ += static_cast<uint64_t>(count);
}

void Metrics::finished(const SequenceTimes& times, double now, const std::string& reason, int64_t prompt_tokens,
                       double queue_seconds) {
  ++by_reason_[reason];
  if (queue_seconds >= 0) queue_.observe(queue_seconds);
  if (reason != "stop" && reason != "length") return;
  end_to_end_.observe(now);
  prompt_length_.observe(static_cast<double>(prompt_tokens));
  generation_length_.observe(static_cast<double>(times.tokens));
  if (times.tokens > 1)
    per_token_.observe((times.last_token - times.first_token) / static_cast<double>(times.tokens - 1));
}

std::string Metrics::text(const std::string& model, const EngineStats& stats) const {
  std::string out;
  const std::string labels = fmt::format("model_name=\"{}\"", escaped(model));
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    print_number(out, name, help, "gauge", labels, value);
  };
  const auto counter = [&](std::string_view name, std::string_view help, double value) {
    print_number(out, name, help, "counter", labels, value);
  };
  const auto number = [](auto value) { return static_cast<double>(value); };
  gauge("vllm:num_requests_running", "Sequences in the running batch.", number(stats.running));
  gauge("vllm:num_requests_waiting", "Sequences waiting for room in the batch.", number(stats.waiting));
  gauge("vllm:kv_cache_usage_perc", "Pages of the KV cache in use, 0 to 1; kept prefixes not counted.",
        ratio(number(stats.pages_used), number(stats.pages_total)));
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          number(stats.prefix_queries));
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", number(stats.prefix_hits));
  counter("vllm:num_preemptions_total", "Sequences put back for lack of pages.", number(stats.preemptions));
  counter("vllm:prompt_tokens_total", "Prompt tokens.", number(prompt_tokens_));
  counter("vllm:generation_tokens_total", "Generated tokens.", number(generation_tokens_));
  head(out, "vllm:request_success_total", "Finished sequences by reason.", "counter");
  for (const auto& [reason, count] : by_reason_)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels, reason, count);
  counter("octavo:requests_rejected_total", "Requests refused with a 4xx or 503 status before generation.",
          number(rejected_));
  head(out, "octavo:kv_clipped_total", "Keys and values (of a token and head) that a stored scale clipped.", "counter");
  for (const auto& [side, count] : {std::pair{"k", stats.kv_clipped.k}, {"v", stats.kv_clipped.v}})
    out += fmt::format("octavo:kv_clipped_total{{{},side=\"{}\"}} {}\n", labels, side, count);
  first_token_.print(out, "vllm:time_to_first_token_seconds", "From arrival to the first token.", labels);
  inter_token_.print(out, "vllm:inter_token_latency_seconds", "Between two tokens of a sequence.", labels);
  per_token_.print(out, "vllm:request_time_per_output_token_seconds",
                   "Mean of a finished sequence after its first token.", labels);
  end_to_end_.print(out, "vllm:e2e_request_latency_seconds", "From arrival to the last token.", labels);
  queue_.print(out, "vllm:request_queue_time_seconds", "Waiting: to be read, and for the first step.", labels);
  prompt_length_.print(out, "vllm:request_prompt_tokens", "Prompt tokens of a finished sequence.", labels);
  generation_length_.print(out, "vllm:request_generation_tokens", "Generated tokens of a finished sequence.", labels);
  print_steps(out, labels, stats);
  return out;
}

std::string Metrics::log_line(const EngineStats& stats, double seconds) {
  const EngineStats last = std::exchange(last_, stats);
  const double in = static_cast<double>(stats.prompt_tokens - last.prompt_tokens);
  const double made = static_cast<double>(stats.generation_tokens - last.generation_tokens);
  if (in == 0 && made == 0 && stats.running == 0 && stats.waiting == 0) return {};
  const double hits = ratio(static_cast<double>(stats.prefix_hits - last.prefix_hits),
                            static_cast<double>(stats.prefix_queries - last.prefix_queries));
  const double speed = ratio(stats.decode.bytes - last.decode.bytes, stats.decode.seconds - last.decode.seconds);
  return fmt::format(
      "in {:.1f} tok/s, out {:.1f} tok/s, running {}, waiting {}, KV {:.1f} %, prefix hits {:.1f} %, "
      "decode {:.1f} GB/s",
      ratio(in, seconds), ratio(made, seconds), stats.running, stats.waiting,
      100 * ratio(static_cast<double>(stats.pages_used), static_cast<double>(stats.pages_total)), 100 * hits,
      speed / 1e9);
}

}  // namespace octavo
