// The calibrator's factors per input channel: fitted on what a layer's source reads, kept with the finished layer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "quantize/calibrate.h"
#include "quantize/channel_factors.h"
#include "quantize/damage.h"

namespace octavo {
namespace {

// Per column the largest magnitude of the BF16 rows added so far; infinite or NaN where a value is: by their bits, of
// which these are the largest.
void add_amax(const Activation& rows, std::vector<float>& amax) {
  OCTAVO_CHECK(rows.format == plain_format(ElementType::kBf16), "{}", rows.format.describe());
  const auto cols = static_cast<size_t>(rows.cols);
  std::vector<uint16_t> largest(cols);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const auto* row = reinterpret_cast<const uint16_t*>(rows.row(r));
    for (size_t c = 0; c < cols; ++c) {
      const auto magnitude = static_cast<uint16_t>(row[c] & 0x7FFF);
      largest[c] = std::max(largest[c], magnitude);
    }
  }
  amax.resize(cols);
  for (size_t c = 0; c < cols; ++c) {
    const float own = load_element(ElementType::kBf16, largest.data(), c);
    if (!(own <= amax[c])) amax[c] = own;
  }
}

}  // namespace

bool Calibrator::fits(int) const {
  return transform_ != nullptr && transform_->options().fitted();
}

Result<void> Calibrator::see_source(const LinearPlace& place, int64_t sample, const Activation& rows) {
  if (jobs_of(place).empty() || !transform_->can_scale(place.input)) return {};
  SourceActivations& seen = source_seen_[place.input];
  add_amax(rows, seen.amax);
  for (const float amax : seen.amax)
    if (!std::isfinite(amax)) return fail(damaged_activations(place_name(place), *samples_, sample));
  if (!transform_->options().awq) return {};
  if (!seen.hessian) seen.hessian = std::make_unique<Hessian>(rows.cols, options_.isa, hessian_work_);
  seen.hessian->add(rows, pool_);
  return {};
}

// Smoothing first; AWQ searches on what it leaves.
Result<void> Calibrator::fit_place(const LinearPlace& place) {
  const auto [layer, input, expert] = place;
  SourceActivations& seen = source_seen_.at(input);
  const std::vector<const QuantizeJob*>& jobs = jobs_of(place);
  std::vector<std::vector<float>> values;
  for (const QuantizeJob* job : jobs) {
    OCTAVO_ASSIGN(std::vector<float> weight, read_weight(job->module));
    values.push_back(std::move(weight));
  }
  const TransformOptions& options = transform_->options();
  if (options.smooth > 0) {
    std::vector<float> weight_amax(seen.amax.size());
    for (const std::vector<float>& weight : values)
      for (size_t i = 0; i < weight.size(); ++i) {
        float& amax = weight_amax[i % weight_amax.size()];
        amax = std::max(amax, std::fabs(weight[i]));
      }
    transform_->share_largest(input, seen.amax);
    transform_->share_largest(input, weight_amax);
    transform_->set_factors(layer, input, smooth_factors(seen.amax, weight_amax, options.smooth));
    return {};
  }
  const std::span<const float> hessian = seen.hessian->matrix();
  std::vector<float> magnitude(seen.amax.size());
  for (size_t c = 0; c < magnitude.size(); ++c)
    magnitude[c] = std::sqrt(hessian[c * magnitude.size() + c] / static_cast<float>(seen.hessian->tokens()));
  transform_->share_largest(input, magnitude);
  std::vector<FactorWeight> weights;
  for (size_t i = 0; i < jobs.size(); ++i)
    weights.push_back({values[i], jobs[i]->module.rows, jobs[i]->format, jobs[i]->fused});
  AwqFactors found = awq_factors(hessian, magnitude, weights, options_.isa, pool_);
  if (found.exponent > 0) transform_->set_factors(layer, input, std::move(found.factors));
  return {};
}

// In the order of use: a place's factors change the rows of the weights that make its input, which were read before.
Result<void> Calibrator::fit(int layer) {
  const auto start = std::chrono::steady_clock::now();
  for (const LinearInput input : {LinearInput::kQkv, LinearInput::kO, LinearInput::kGateUp, LinearInput::kDown})
    if (source_seen_.contains(input)) OCTAVO_TRY(fit_place({layer, input}));
  source_seen_.clear();
  hessian_work_ = {};
  weight_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

Result<void> Calibrator::load_factors() {
  if (!fits(0)) return {};
  for (int layer = 0; layer < static_cast<int>(checkpoint_.config().num_layers); ++layer) {
    if (!folder_.has(layer)) continue;
    OCTAVO_ASSIGN(LayerFactors factors, folder_.load_factors(layer));
    for (auto& [input, own] : factors) transform_->set_factors(layer, input, std::move(own));
  }
  return {};
}

LayerFactors Calibrator::layer_factors(int layer) const {
  LayerFactors factors;
  if (!fits(layer)) return factors;
  for (const LinearInput input : {LinearInput::kQkv, LinearInput::kO, LinearInput::kGateUp, LinearInput::kDown})
    if (const std::vector<float>* own = transform_->factors(layer, input)) factors[input] = *own;
  return factors;
}

}  // namespace octavo
