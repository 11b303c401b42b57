// Rotary frequencies of a ModelConfig; formulas as in docs/semantics.md, computed in double.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "checkpoint/model_config.h"

namespace octavo {
namespace {

// theta^(-2i/dim)
std::vector<double> base_frequencies(double theta, int64_t dim) {
  std::vector<double> frequencies(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  return frequencies;
}

// The base that the length-dependent rule has at factor x the trained context.
double dynamic_theta(const RopeConfig& rope, int64_t dim) {
  if (dim <= 2) return rope.theta;
  const double stretch = rope.factor * rope.factor - (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const auto original = static_cast<double>(rope.original_max_position);
  const double low = rope.low_freq_factor, high = rope.high_freq_factor;
  for (double& f : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / f;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      f /= rope.factor;
    } else {
      const double smooth = (original / wavelength - low) / (high - low);
      f = (1.0 - smooth) * f / rope.factor + smooth * f;
    }
  }
}

void scale_yarn(const RopeConfig& rope, int64_t dim, std::vector<double>& frequencies) {
  const auto size = static_cast<double>(dim);
  const auto dimension_of = [&](double rotations) {
    return size * std::log(static_cast<double>(rope.original_max_position) / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

double yarn_attention_factor(const RopeConfig& rope) {
  const auto mscale = [&](double m) { return rope.factor <= 1.0 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1.0; };
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) return mscale(rope.mscale) / mscale(rope.mscale_all_dim);
  return mscale(1.0);
}

}  // namespace

RopeTable inverse_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  RopeTable table;
  const double theta = rope.type == RopeType::kDynamic ? dynamic_theta(rope, config.head_dim) : rope.theta;
  std::vector<double> frequencies = base_frequencies(theta, config.head_dim);
  if (rope.type == RopeType::kLinear)
    for (double& f : frequencies) f /= rope.factor;
  if (rope.type == RopeType::kLlama3) scale_llama3(rope, frequencies);
  if (rope.type == RopeType::kYarn) {
    scale_yarn(rope, config.head_dim, frequencies);
    table.attention_factor = static_cast<float>(yarn_attention_factor(rope));
  }
  table.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
  return table;
}

int64_t ModelConfig::context_length() const {
  const auto stretched = [&](int64_t base) { return static_cast<int64_t>(static_cast<double>(base) * rope.factor); };
  switch (rope.type) {
    case RopeType::kLinear:
    case RopeType::kDynamic:
      return stretched(max_position);
    case RopeType::kYarn:
      return std::max(max_position,
                      stretched(rope.original_max_position > 0 ? rope.original_max_position : max_position));
    case RopeType::kDefault:
    case RopeType::kLlama3:
      return max_position;
  }
  return max_position;
}

}  // namespace octavo
