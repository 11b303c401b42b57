// What `bench serve` prints: a table for people, vLLM's keys for programs.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "loadgen/summary.h"

namespace octavo {

struct MeasuredLoad {
  std::string server, model, endpoint;
  bool in_process = false;
  std::optional<double> request_rate;  // open loop
  size_t concurrency = 0;              // 0: no limit
  std::string slo;                     // as given; empty: none
  uint64_t seed = 0;
  LoadSummary summary;
  std::span<const RequestRecord> records;
};

std::string measured_load_text(const MeasuredLoad& load);
// One object with the keys of vLLM's `bench serve`. `detailed`: with the figures of each request, as its
// --save-detailed writes them.
std::string measured_load_json(const MeasuredLoad& load, bool detailed);

// "3 x HTTP 429: busy", one a line, at most `most` of them.
std::string failure_lines(const LoadSummary& summary, size_t most);

}  // namespace octavo
