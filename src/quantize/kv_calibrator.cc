#include "quantize/kv_calibrator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/tensor.h"
#include "quantize/attention_entropy.h"
#include "quantize/damage.h"

namespace octavo {
namespace {

constexpr size_t kTemperatureSamples = 8;
constexpr int64_t kTemperatureQueries = 32;  // of a sample

// Ranges are found for this element where the side asked for has no scales.
TensorFormat scaled_format(const TensorFormat& format) {
  return format.scaled() ? format : row_format(ElementType::kE4m3);
}

void worsen(std::optional<KvSideReport>& report, const ScaleEstimate& estimate, int layer) {
  if (!report) report.emplace();
  report->underflowed = std::max(report->underflowed, estimate.underflowed);
  if (report->layer >= 0 && estimate.saturated <= report->saturated) return;
  report->saturated = estimate.saturated;
  report->layer = layer;
}

// Tokens of a text that neither K nor V needs a range for.
int64_t wide_tokens(const KvPlan& kv) {
  return std::max(kv.k_options.wide_tokens, kv.v_options.wide_tokens);
}

bool lowered(const KvPlan& kv) {
  return kv.k.scaled() || kv.v.scaled();
}

// Tokens whose keys and values are looked at in every lowered layer.
int64_t seen_tokens(const PrecisionPlan& plan, const CalibrationSet& samples) {
  int64_t wide = 0, seen = 0;
  for (const KvPlan& kv : plan.kv)
    if (lowered(kv)) wide = std::max(wide, wide_tokens(kv));
  for (const auto& sample : samples.samples) seen += std::max<int64_t>(std::ssize(sample) - wide, 0);
  return seen;
}

}  // namespace

Result<void> check_kv_samples(const PrecisionPlan& plan, const KvCalibrateOptions& options,
                              const CalibrationSet& samples) {
  if (seen_tokens(plan, samples) > 0) return {};
  size_t longest = 0;
  for (const auto& sample : samples.samples) longest = std::max(longest, sample.size());
  return fail({.what = "every token of the calibration text is one that the KV cache keeps wide",
               .where = fmt::format("--kv {}", options.kv),
               .found = fmt::format("samples of at most {} tokens", longest),
               .expected = "samples that are longer than the wide tokens",
               .remedy = "give a larger --length, or fewer wide tokens"});
}

void compute_kv_scales(PrecisionPlan& plan) {
  for (KvPlan& kv : plan.kv) {
    kv.k.scale_time = kv.v.scale_time = ScaleTime::kDynamic;
    kv.k_options = kv.v_options = {};
  }
}

KvCalibrator::KvCalibrator(const ModelConfig& config, const PrecisionPlan& plan, const KvCalibrateOptions& options,
                           const EstimatorOptions& estimator, const CalibrationSet& samples, Groups groups,
                           ThreadPool& pool)
    : config_(config),
      plan_(plan),
      options_(options),
      estimator_(estimator),
      samples_(samples),
      groups_(std::move(groups)),
      pool_(pool) {
  calibration_.kv_cache = options.kv;
  calibration_.estimator = estimator_text(estimator);
  report_.kv = options.kv;
  report_.tokens = calibration_.tokens = seen_tokens(plan, samples);
}

Result<void> KvCalibrator::see_kv(int layer, int64_t sample, int64_t rows, const float* k, const float* v,
                                  int64_t stride) {
  const auto heads = static_cast<size_t>(config_.num_kv_heads);
  const int64_t kv_size = config_.kv_size();
  if (k_seen_.empty()) {
    k_seen_.assign(heads, ValueStatistics(config_.head_dim));
    v_seen_.assign(heads, ValueStatistics(config_.head_dim));
    k_min_.assign(static_cast<size_t>(kv_size), INFINITY);
    k_max_.assign(static_cast<size_t>(kv_size), -INFINITY);
  }
  // Tokens that are kept in BF16 need no range.
  const KvPlan& kv = plan_.kv[static_cast<size_t>(layer)];
  const int64_t k_first = kv.k_options.wide_tokens, v_first = kv.v_options.wide_tokens;
  for (size_t h = 0; h < heads; ++h) {
    const int64_t column = static_cast<int64_t>(h) * config_.head_dim;
    const auto add = [&](ValueStatistics& seen, const float* values, int64_t first) {
      if (first < rows)
        seen.add(ElementType::kF32, reinterpret_cast<const std::byte*>(values + first * stride + column), rows - first,
                 stride * 4, pool_);
    };
    add(k_seen_[h], k, k_first);
    add(v_seen_[h], v, v_first);
    for (const ValueStatistics* seen : {&k_seen_[h], &v_seen_[h]})
      if (seen->damaged())
        return fail(
            damaged_activations(kv_place_name(layer, seen == &k_seen_[h], static_cast<int64_t>(h)), samples_, sample));
  }
  for (int64_t r = k_first; r < rows; ++r)
    for (int64_t c = 0; c < kv_size; ++c) {
      const float value = k[r * stride + c];
      k_min_[static_cast<size_t>(c)] = std::min(k_min_[static_cast<size_t>(c)], value);
      k_max_[static_cast<size_t>(c)] = std::max(k_max_[static_cast<size_t>(c)], value);
    }
  if (options_.refit_temperature && held_.size() < kTemperatureSamples) hold(rows, k - config_.q_size(), k, stride);
  return {};
}

int64_t KvCalibrator::refit_bytes(const ModelConfig& config, const CalibrationSet& samples) {
  int64_t values = 0;
  for (size_t s = 0; s < std::min(samples.samples.size(), kTemperatureSamples); ++s) {
    const auto rows = std::ssize(samples.samples[s]), queries = std::min(kTemperatureQueries, rows);
    values += rows * config.kv_size() + queries * config.q_size();
    values +=
        2 * queries * config.num_heads * (rows / 2);  // of the two caches; a query sees half of the keys, on average
  }
  return values * static_cast<int64_t>(sizeof(float));
}

void KvCalibrator::hold(int64_t rows, const float* q, const float* k, int64_t stride) {
  Held& held = held_.emplace_back();
  held.rows = rows;
  for (int64_t r = 0; r < rows; ++r)
    held.keys.insert(held.keys.end(), k + r * stride, k + r * stride + config_.kv_size());
  const int64_t count = std::min(kTemperatureQueries, rows);
  for (int64_t i = 1; i <= count; ++i) {
    const int64_t position = rows * i / count - 1;
    held.positions.push_back(position);
    held.queries.insert(held.queries.end(), q + position * stride, q + position * stride + config_.q_size());
  }
}

Result<void> KvCalibrator::finish_layer(int index) {
  const KvPlan& kv = plan_.kv[static_cast<size_t>(index)];
  KvCalibration::Layer layer;
  layer.k = kv_side_name(kv.k, kv.k_options);
  layer.v = kv_side_name(kv.v, kv.v_options);
  for (size_t h = 0; h < k_seen_.size(); ++h)
    for (const bool key : {true, false}) {
      const ValueStatistics& seen = key ? k_seen_[h] : v_seen_[h];
      const TensorFormat& asked = key ? kv.k : kv.v;
      const TensorFormat format = scaled_format(asked);
      const std::string place = kv_place_name(index, key, static_cast<int64_t>(h));
      if (asked.scaled() && seen.histogram().finite() == 0)
        return fail({.what = "calibration saw no values that a KV scale could come from",
                     .where = place,
                     .remedy = "give longer samples with --length, or fewer wide tokens with --kv"});
      ScaleEstimate estimate = estimate_scale(seen.histogram(), seen.amax(), format, estimator_);
      const float range = seen.amax() > 0 ? estimate.scale * element_info(format.element).max : 0.0f;
      // The histogram would count part of the bin that amax lies in.
      if (range >= seen.amax() * (1 - 1e-6f)) estimate.saturated = 0;
      (key ? layer.k_range : layer.v_range).push_back(range);
      const bool stored = asked.scaled() && asked.scale_time == ScaleTime::kStored;
      if (stored && !(seen.amax() > 0))
        report_.notes.push_back(place + ": calibration saw zeros alone, the scale is 1");
      if (stored && estimate.fell_back) report_.notes.push_back(fallback_note(place, estimator_));
      if (stored && !(key && kv.k_options.channels)) worsen(key ? report_.k : report_.v, estimate, index);
    }
  const float widen =
      estimator_.kind == Estimator::kMargin ? 1.0f / static_cast<float>(estimator_.margin) - 1.0f : 0.0f;
  for (size_t c = 0; c < k_min_.size(); ++c) {
    const bool seen = k_min_[c] <= k_max_[c];
    const float half = seen ? 0.5f * (k_max_[c] - k_min_[c]) * widen : 0.0f;
    layer.k_min.push_back(seen ? k_min_[c] - half : 0.0f);
    layer.k_max.push_back(seen ? k_max_[c] + half : 0.0f);
  }
  calibration_.layers.push_back(std::move(layer));
  if (options_.refit_temperature) {
    report_.entropies.push_back(fit_temperature(index));
    calibration_.layers.back().temperature = report_.entropies.back().temperature;
  }
  k_seen_.clear();
  v_seen_.clear();
  held_.clear();
  return {};
}

KvReport::Entropy KvCalibrator::fit_temperature(int index) const {
  const KvPlan& kv = plan_.kv[static_cast<size_t>(index)];
  const auto layer = static_cast<size_t>(index);
  KeyRounding rounding{.format = kv.k, .options = kv.k_options};
  rounding.head_dim = config_.head_dim;
  if (kv.k.scaled() && kv.k.scale_time == ScaleTime::kStored)
    rounding.scales = calibration_.scales(layer, true, kv.k, kv.k_options);
  if (kv.k_options.channels) rounding.channels = calibration_.channels(layer, kv.k);
  AttentionEntropy exact, lowered;
  for (const Held& sample : held_) {
    std::vector<float> keys = sample.keys, bf16 = sample.keys;
    pool_.parallel_items(sample.rows, [&](int64_t r, int) {
      for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
        const auto at = static_cast<size_t>((r * config_.num_kv_heads + h) * config_.head_dim);
        round_key(rounding, r, h, &keys[at]);
        round_key({.format = plain_format(ElementType::kBf16), .options = {}, .head_dim = config_.head_dim}, r, h,
                  &bf16[at]);
      }
    });
    exact.add(config_, sample.positions, sample.queries, bf16, pool_);
    lowered.add(config_, sample.positions, sample.queries, keys, pool_);
  }
  KvReport::Entropy entropy;
  entropy.bf16 = exact.mean(1.0, pool_);
  entropy.lowered = lowered.mean(1.0, pool_);
  entropy.temperature = static_cast<float>(lowered.temperature_for(entropy.bf16, pool_));
  return entropy;
}

Result<LinearGroup> KvCalibrator::group(const LinearPlace& place, const LayerLoader& loader) {
  if (place.input == LinearInput::kO) OCTAVO_TRY(finish_layer(place.layer));
  return groups_(place, loader);
}

}  // namespace octavo
