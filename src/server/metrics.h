// Metrics: what the server counts, in the Prometheus text format under vLLM's names.
//
// Latencies and outcomes are counted per sequence: a request with n = 2 or two prompts counts twice. Only sequences
// that brought a first token are in the TTFT histogram, only ones that ended in "stop" or "length" in that of
// end-to-end latency and of time per output token.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/serving.h"

namespace octavo {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value, uint64_t times = 1);
  // Lines of buckets, sum and count. `labels`: `model_name="..."`.
  void print(std::string& out, std::string_view name, std::string_view help, std::string_view labels) const;
  uint64_t count() const { return count_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  // per bucket, the last beyond every bound
  double sum_ = 0;
  uint64_t count_ = 0;
};

// The life of one sequence, in seconds since its request arrived.
struct SequenceTimes {
  double first_token = -1, last_token = -1;
  int64_t tokens = 0;
};

// One thread.
class Metrics {
 public:
  Metrics();
  void rejected() { ++rejected_; }
  // Of a request, when its first token comes: what its usage says.
  void prompt_tokens(int64_t count) { prompt_tokens_ += static_cast<uint64_t>(count); }
  // `count` tokens arrived together at `now`.
  void tokens(SequenceTimes& times, double now, int64_t count);
  // `queue_seconds`: what it waited before it was read and before its first step; negative: unknown.
  void finished(const SequenceTimes& times, double now, const std::string& reason, int64_t prompt_tokens,
                double queue_seconds);

  std::string text(const std::string& model, const EngineStats& stats) const;
  // One line on what happened since the last call; empty if nothing did. `seconds`: since that call.
  std::string log_line(const EngineStats& stats, double seconds);

 private:
  Histogram first_token_, inter_token_, per_token_, end_to_end_, queue_, prompt_length_, generation_length_;
  std::map<std::string, uint64_t> by_reason_;
  uint64_t rejected_ = 0, prompt_tokens_ = 0, generation_tokens_ = 0;
  EngineStats last_;
};

}  // namespace octavo
