#include "cli/bench_serve_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>

#include "base/json.h"
#include "cli/terminal.h"

namespace octavo {
namespace {

constexpr const char* kFormulas =
    R"(due         closed loop: when the request was sent; open loop: when it was scheduled, sent late or not
TTFT        first chunk with text - due
TPOT        (last chunk - first chunk with text) / (output tokens - 1), of answers with more than one token
ITL         from one chunk with text to the next
E2E         last chunk - due
throughput  what completed requests count / time from the start to the last chunk of all
(95 %)      bootstrap over requests of the mean or median beside it
)";

std::string milliseconds(double seconds) {
  const double ms = seconds * 1000;
  return fmt::format("{:.{}f}", ms, ms < 100 ? 2 : ms < 1000 ? 1 : 0);
}

std::string range(const Interval& interval) {
  return fmt::format("({} - {})", milliseconds(interval.low), milliseconds(interval.high));
}

std::string loop_in_words(const MeasuredLoad& load) {
  const auto at_a_time = [&load] {
    return fmt::format("{} {} at a time", load.concurrency, load.concurrency == 1 ? "request" : "requests");
  };
  if (!load.request_rate) return "closed loop, " + at_a_time();
  std::string text = std::isinf(*load.request_rate) ? "open loop, all requests at once"
                                                    : fmt::format("open loop, {:g} requests/s", *load.request_rate);
  return load.concurrency > 0 ? text + ", at most " + at_a_time() : text;
}

void add_row(Table& table, const char* name, const SampleSummary& s) {
  if (s.count == 0) return table.add({name, "none"});
  table.add({name, milliseconds(s.mean), range(s.mean_95), milliseconds(s.median), range(s.median_95),
             milliseconds(s.p90), milliseconds(s.p99)});
}

void add_sample(Json& out, Json& intervals, const std::string& name, const SampleSummary& s) {
  out["mean_" + name + "_ms"] = s.mean * 1000;
  out["median_" + name + "_ms"] = s.median * 1000;
  out["std_" + name + "_ms"] = s.std * 1000;
  out["p90_" + name + "_ms"] = s.p90 * 1000;
  out["p99_" + name + "_ms"] = s.p99 * 1000;
  intervals["mean_" + name + "_ms"] = {s.mean_95.low * 1000, s.mean_95.high * 1000};
  intervals["median_" + name + "_ms"] = {s.median_95.low * 1000, s.median_95.high * 1000};
}

// Per request, in the order of sending; seconds. Failed requests have zeros and their error.
void add_details(Json& out, std::span<const RequestRecord> records) {
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "errors"}) out[key] = Json::array();
  for (const RequestRecord& record : records) {
    const bool ok = record.completed();
    out["input_lens"].push_back(ok ? record.prompt_tokens : 0);
    out["output_lens"].push_back(ok ? record.output_tokens : 0);
    out["ttfts"].push_back(ok ? record.ttft() : 0.0);
    out["itls"].push_back(ok ? record.gaps : std::vector<double>());
    out["errors"].push_back(record.error);
  }
}

}  // namespace

std::string failure_lines(const LoadSummary& summary, size_t most) {
  std::string text;
  size_t shown = 0, counted = 0;
  for (const auto& [reason, count] : summary.failures) {
    if (shown++ == most) break;
    text += fmt::format("{} x {}\n", count, reason);
    counted += count;
  }
  if (counted < summary.failed) text += fmt::format("{} x other reasons\n", summary.failed - counted);
  return text;
}

std::string measured_load_text(const MeasuredLoad& load) {
  const LoadSummary& s = load.summary;
  std::string text = fmt::format("{} at {}{}{}: {}\n", load.model, load.server, load.endpoint,
                                 load.in_process ? ", served in this process" : "", loop_in_words(load));
  text += fmt::format("{} requests completed, {} failed in {}; {} tokens in, {} out\n", s.completed, s.failed,
                      human_seconds(s.duration), s.input_tokens, s.output_tokens);
  if (!s.counted_by_server)
    text += "The server tells no usage: tokens out are its chunks with text, tokens in are missing\n";
  text += failure_lines(s, 5);
  Table latencies({"ms", "mean", "(95 %)", "median", "(95 %)", "p90", "p99"});
  add_row(latencies, "TTFT", s.ttft);
  add_row(latencies, "TPOT", s.tpot);
  add_row(latencies, "ITL", s.itl);
  add_row(latencies, "E2E", s.e2e);
  text += "\n" + latencies.text() + "\n";
  text += fmt::format("output throughput  {:9.1f} tok/s\n", s.output_throughput);
  text += fmt::format("total throughput   {:9.1f} tok/s\n", s.total_throughput);
  text += fmt::format("requests           {:9.3f} /s\n", s.request_throughput);
  if (!load.slo.empty())
    text += fmt::format("goodput            {:9.3f} /s  ({} of {} requests within {} ms)\n", s.request_goodput, s.good,
                        s.completed + s.failed, load.slo);
  return text + "\n" + kFormulas;
}

std::string measured_load_json(const MeasuredLoad& load, bool detailed) {
  const LoadSummary& s = load.summary;
  const bool infinite = !load.request_rate || std::isinf(*load.request_rate);
  Json out = {{"date", fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)))},
              {"backend", load.endpoint.ends_with("/chat/completions") ? "openai-chat" : "openai"},
              {"model_id", load.model},
              {"server", load.server},
              {"in_process", load.in_process},
              {"num_prompts", s.completed + s.failed},
              {"request_rate", infinite ? Json("inf") : Json(*load.request_rate)},
              {"burstiness", 1.0},
              {"max_concurrency", load.concurrency > 0 ? Json(load.concurrency) : Json(nullptr)},
              {"seed", load.seed},
              {"duration", s.duration},
              {"completed", s.completed},
              {"failed", s.failed},
              {"total_input_tokens", s.input_tokens},
              {"total_output_tokens", s.output_tokens},
              {"tokens_counted_by_server", s.counted_by_server},
              {"request_throughput", s.request_throughput},
              {"request_goodput", load.slo.empty() ? Json(nullptr) : Json(s.request_goodput)},
              {"output_throughput", s.output_throughput},
              {"total_token_throughput", s.total_throughput},
              {"max_concurrent_requests", s.max_concurrent}};
  Json intervals = Json::object();
  add_sample(out, intervals, "ttft", s.ttft);
  add_sample(out, intervals, "tpot", s.tpot);
  add_sample(out, intervals, "itl", s.itl);
  add_sample(out, intervals, "e2el", s.e2e);
  out["confidence_95"] = std::move(intervals);
  out["failures"] = Json::array();
  for (const auto& [reason, count] : s.failures) out["failures"].push_back({{"reason", reason}, {"count", count}});
  if (detailed) add_details(out, load.records);
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace octavo
