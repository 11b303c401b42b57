// What tokens cost: bytes and operations of a step, and the least time that they take on this machine.
#pragma once

#include <string>

#include "engine/model.h"
#include "engine/step.h"
#include "kernels/roofline.h"

namespace octavo {

// What one token costs.
struct TokenCost {
  double linear_bytes = 0;      // packed weights, scales and head, without experts
  double head_bytes = 0;        // of these
  double expert_bytes = 0;      // of all experts
  double share_of_experts = 0;  // that a token passes
  double kv_bytes = 0;          // of one token of context
  double linear_flops = 0;      // without the head; of the experts those that a token passes
  double head_flops = 0;
  double attention_flops = 0;  // per token of context

  // What a step of so many rows reads of the weights: of the experts as many as rows that choose them evenly and
  // independently pass on average.
  double weight_bytes(double rows) const;
};
TokenCost token_cost(const Model& model);

struct StepCost {
  double bytes = 0;  // weights once but for the head, and the KV cache of each share
  double operations = 0;
};
StepCost step_cost(const TokenCost& cost, const Step& step);

// FLOP/s, or INT8 operations per second, of the best instruction of this machine that computes the plan's products
// exactly, in 10^9; and its name.
double compute_peak(const Model& model, const Roofline& roofline, std::string& name);

}  // namespace octavo
