// Speed of a model beside the roofline of the machine, measured in the same run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/cost.h"

namespace octavo {

struct SpeedOptions {
  int64_t prompt = 512;   // tokens of the prefill
  int64_t generate = 64;  // decode steps
  int64_t depth = 0;      // tokens in the cache before either starts
  int repeat = 5;
  bool decode_after_prompt = false;  // decode on top of the prompt, as a request does; else on top of `depth` too
};

struct SpeedFigure {
  double tokens_per_second = 0;  // median over the repeats
  double spread = 0;             // (max - min) / median
  double roofline_share = 0;     // median over the repeats, each against the roofline measured beside it
  double gb_per_token = 0, gflop_per_token = 0;
  double achieved_gb_s = 0, achieved_gflops = 0;
};

struct SpeedResult {
  SpeedFigure prefill, decode;
  std::optional<SpeedFigure> greedy;  // decode that finds the highest logits alone; where the model is loaded for that
  Roofline roofline;                  // medians
  std::string prefill_bound;          // "FMA peak": the instruction the prefill figure is compared with
  double decode_bytes_weights = 0, decode_bytes_kv = 0;  // read for one token
  double ttft_seconds = 0, tpot_seconds = 0;
};

// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double median(std::vector<double> values);         // of at least one
double spread(const std::vector<double>& values);  // (max - min) / median

// Error: numbers below 1 (depth: 0) or beyond all reason; more tokens together than the model's context holds.
Result<void> check_bench_tokens(const Model& model, int64_t depth, int64_t prompt, int64_t generate);

Result<SpeedResult> measure_speed(Model& model, const SpeedOptions& options,
                                  const std::function<void(int done, int total)>& progress = {});

}  // namespace octavo
