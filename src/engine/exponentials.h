// exp and its sums over a row of logits, at vector speed and with the same bits everywhere.
#pragma once

#include <span>

namespace octavo {

// out[i] = exp((logits[i] - highest) x factor); factor > 0; 0 where the exponent of 2 lies below -126 and for NaN.
void exponentials(std::span<const float> logits, float highest, float factor, std::span<float> out);

// Sum in FP32 inside runs of 256 terms, in double over the runs.
double sum_of(std::span<const float> terms);

// log(sum(exp(logits))); -inf and NaN logits count as nothing.
double log_sum_exp(std::span<const float> logits);

}  // namespace octavo
