#include "engine/exponentials.h"

#include <algorithm>
#include <cmath>

#include "engine/sampler.h"
#include "kernels/math.h"

namespace octavo {
namespace {
constexpr size_t kRun = 256;
}

void exponentials(std::span<const float> logits, float highest, float factor, std::span<float> out) {
  const float scale = factor * kLog2E;
  const float* in = logits.data();
  float* to = out.data();
  // No inner loop and no branch: the compiler makes vectors of it.
  for (size_t i = 0; i < logits.size(); ++i) {
    const float exponent = (in[i] - highest) * scale;
    const float t = exponent > kExp2Min ? exponent : kExp2Min, n = std::nearbyint(t),
                f = t - n;  // NaN becomes the minimum
    float p = std::fma(kExp2Coefficients[6], f, kExp2Coefficients[5]);
    p = std::fma(p, f, kExp2Coefficients[4]);
    p = std::fma(p, f, kExp2Coefficients[3]);
    p = std::fma(p, f, kExp2Coefficients[2]);
    p = std::fma(p, f, kExp2Coefficients[1]);
    p = std::fma(p, f, kExp2Coefficients[0]);
    // 2^n by its exponent bits; all zero bits, and so 0, where n is the minimum.
    const auto bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    to[i] = p * bits_float(bits & -static_cast<uint32_t>(exponent > kExp2Min));
  }
}

double sum_of(std::span<const float> terms) {
  double total = 0;
  for (size_t begin = 0; begin < terms.size(); begin += kRun) {
    const size_t count = std::min(kRun, terms.size() - begin);
    const float* run = terms.data() + begin;
    float lanes[16] = {};
    for (size_t i = 0; i + 16 <= count; i += 16)
      for (size_t l = 0; l < 16; ++l) lanes[l] += run[i + l];
    for (size_t i = count / 16 * 16; i < count; ++i) lanes[0] += run[i];
    for (const float lane : lanes) total += lane;
  }
  return total;
}

double log_sum_exp(std::span<const float> logits) {
  const float highest = logits[static_cast<size_t>(argmax(logits))];
  double total = 0;
  float terms[kRun];
  for (size_t begin = 0; begin < logits.size(); begin += kRun) {
    const auto run = logits.subspan(begin, std::min(kRun, logits.size() - begin));
    exponentials(run, highest, 1.0f, {terms, run.size()});
    total += sum_of({terms, run.size()});
  }
  return std::log(total) + highest;
}

}  // namespace octavo
