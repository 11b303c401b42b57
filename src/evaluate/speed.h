// Speed of a model beside the roofline of the machine, measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "engine/model.h"
#include "kernels/roofline.h"

namespace octavo {

struct SpeedOptions {
  int64_t prompt = 512;   // tokens of the prefill
  int64_t generate = 64;  // decode steps
  int64_t depth = 0;      // tokens in the cache before either starts
  int repeat = 5;
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
  Roofline roofline;          // medians
  std::string prefill_bound;  // "FMA peak": the instruction the prefill figure is compared with
  double decode_bytes_weights = 0, decode_bytes_kv = 0;  // read for one token
  double ttft_seconds = 0, tpot_seconds = 0;
};

// What one token costs.
struct TokenCost {
  double linear_bytes = 0;  // packed weights, scales and head
  double kv_bytes = 0;      // of one token of context
  double linear_flops = 0;  // without the head
  double head_flops = 0;
  double attention_flops = 0;  // per token of context
};
TokenCost token_cost(const Model& model);

Result<SpeedResult> measure_speed(Model& model, const SpeedOptions& options,
                                  const std::function<void(int done, int total)>& progress = {});

}  // namespace octavo
