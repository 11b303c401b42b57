// Speed of several sequences together: what the kernels alone reach at the batch of a busy server.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "engine/model.h"

namespace octavo {

struct BatchSpeedOptions {
  int64_t batch = 32;      // sequences
  int64_t prompt = 128;    // tokens of each
  int64_t generate = 128;  // decode steps
  int64_t depth = 0;       // tokens in each one's cache before its prompt
  int64_t chunk = 2048;    // rows of a prefill step, over all sequences
  int repeat = 3;
  bool warm_up = true;   // a round before them that is not counted
  bool roofline = true;  // measure the machine beside each: else byte_seconds and compute_seconds stay 0
};

// Medians over the repeats, tokens per second of all sequences together.
struct BatchSpeedResult {
  double prefill = 0, decode = 0;
  // batch x generate / (prefill + decode): a closed loop of equal requests with nothing between its steps.
  double output = 0;
  double spread = 0;  // of `output`: (max - min) / median
  double step_seconds = 0;
  // Of a decode step: the time its bytes take at the read bandwidth, and its operations at the peak, measured in the
  // same run.
  double byte_seconds = 0, compute_seconds = 0;
  double roofline_share() const { return std::max(byte_seconds, compute_seconds) / step_seconds; }
};

// Error: a batch, prompt or generation out of range; a context longer than the model's.
Result<void> check_batch_speed(const Model& model, const BatchSpeedOptions& options);
Result<BatchSpeedResult> measure_batch_speed(Model& model, const BatchSpeedOptions& options,
                                             const std::function<void(int done, int total)>& progress = {});

}  // namespace octavo
