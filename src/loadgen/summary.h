// Summary: the figures of a run, from the records of its requests.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "loadgen/record.h"
#include "loadgen/statistics.h"

namespace octavo {

// Limits in seconds that a good request stays within. Unset: no limit.
struct Slo {
  std::optional<double> ttft, tpot, e2e;
  bool any() const { return ttft || tpot || e2e; }
  bool met_by(const RequestRecord& record) const;
};

// "ttft:500,tpot:50,e2e:10000", in milliseconds; "e2el" is "e2e", as vLLM calls it.
Result<Slo> parse_slo(std::string_view text, std::string_view flag);

// Requests and tokens count when their request completed. Latencies in seconds.
struct LoadSummary {
  size_t completed = 0, failed = 0, good = 0;
  double duration = 0;  // from the start to the last chunk of the last request
  int64_t input_tokens = 0, output_tokens = 0;
  bool counted_by_server = true;  // the tokens of every completed request
  size_t max_concurrent = 0;      // most requests due and not yet answered
  double request_throughput = 0, output_throughput = 0, total_throughput = 0, request_goodput = 0;  // per second
  SampleSummary ttft, tpot, itl, e2e;
  std::vector<std::pair<std::string, size_t>> failures;  // by reason, the most frequent first
};

LoadSummary summarize_load(std::span<const RequestRecord> records, const Slo& slo);

}  // namespace octavo
