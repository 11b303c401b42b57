#include "quantize/estimator.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "formats/tensor.h"

namespace octavo {
namespace {

Error bad_estimator(std::string_view text) {
  return {.what = "unknown estimator of activation scales",
          .where = "--estimator",
          .found = fmt::format("'{}'", text),
          .expected = "amax, mse, percentile[:QUANTILE[:CLIP]] in per cent, or margin[:SHARE]",
          .remedy = "for example percentile:99.9:99.99, or margin:0.9"};
}

// "name:1.5:2" -> the name, and the numbers behind it. False where one is none.
bool split(std::string_view text, std::string_view& name, std::vector<double>& numbers) {
  size_t colon = text.find(':');
  name = text.substr(0, colon);
  while (colon != std::string_view::npos) {
    text.remove_prefix(colon + 1);
    colon = text.find(':');
    const std::string_view part = text.substr(0, colon);
    double value = 0;
    const auto [stop, status] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (status != std::errc() || stop != part.data() + part.size()) return false;
    numbers.push_back(value);
  }
  return true;
}

// The smallest magnitude that does not round to zero: half of the smallest element, which ties to even.
float smallest_kept(ElementType element) {
  float low = 0, high = 1;
  for (int i = 0; i < 40; ++i) {
    const float middle = (low + high) / 2;
    std::byte code{};
    store_element(element, &code, 0, middle);
    (load_element(element, &code, 0) == 0.0f ? low : high) = middle;
  }
  return high;
}

float mse_scale(const LogHistogram& histogram, float amax, const TensorFormat& format) {
  constexpr int kSteps = 48;  // an eighth of an octave each
  float best = scale_from_amax(amax, format);
  double least = expected_error(histogram, best, format.element);
  for (int i = 1; i <= kSteps; ++i) {
    const float scale = scale_from_amax(amax * std::exp2(-static_cast<float>(i) / 8), format);
    const double error = expected_error(histogram, scale, format.element);
    if (error >= least) continue;
    least = error;
    best = scale;
  }
  return best;
}

}  // namespace

Result<EstimatorOptions> parse_estimator(std::string_view text) {
  std::string_view name;
  std::vector<double> numbers;
  if (!split(text, name, numbers)) return fail(bad_estimator(text));
  EstimatorOptions options;
  if (name == "percentile" && numbers.size() <= 2) {
    options.kind = Estimator::kPercentile;
    if (!numbers.empty()) options.quantile = options.clip = numbers[0] / 100;
    if (numbers.size() == 2) options.clip = numbers[1] / 100;
    if (numbers.size() == 1) options.clip = 1.0;
    const bool fits = options.quantile > 0.5 && options.quantile <= 1 && options.clip > 0.5 && options.clip <= 1;
    if (!fits) return fail(bad_estimator(text));
    return options;
  }
  if (name == "margin" && numbers.size() <= 1) {
    options.kind = Estimator::kMargin;
    if (!numbers.empty()) options.margin = numbers[0];
    if (!(options.margin > 0.1) || options.margin > 1) return fail(bad_estimator(text));
    return options;
  }
  if (!numbers.empty() || (name != "amax" && name != "mse")) return fail(bad_estimator(text));
  options.kind = name == "mse" ? Estimator::kMse : Estimator::kAmax;
  return options;
}

std::string estimator_text(const EstimatorOptions& options) {
  switch (options.kind) {
    case Estimator::kAmax:
      return "amax";
    case Estimator::kMse:
      return "mse";
    case Estimator::kPercentile:
      return fmt::format("percentile:{:g}:{:g}", 100 * options.quantile, 100 * options.clip);
    case Estimator::kMargin:
      return fmt::format("margin:{:g}", options.margin);
  }
  return {};
}

std::string fallback_note(std::string_view place, const EstimatorOptions& options) {
  return fmt::format("{}: the quantile of {} is zero, as most of the values are: the scale is amax's", place,
                     estimator_text(options));
}

double expected_error(const LogHistogram& histogram, float scale, ElementType element) {
  constexpr int kPoints = 8;
  double error = 0, total = 0;
  for (int i = 1; i < LogHistogram::kBins; ++i) {
    const auto count = static_cast<double>(histogram.bins()[static_cast<size_t>(i)]);
    if (count == 0) continue;
    const double begin = LogHistogram::bin_begin(i), end = LogHistogram::bin_begin(i + 1);
    for (int p = 0; p < kPoints; ++p) {
      const double value = begin + (end - begin) * (p + 0.5) / kPoints;
      std::byte code{};
      store_element(element, &code, 0, static_cast<float>(value) / scale);
      const double difference = static_cast<double>(load_element(element, &code, 0)) * scale - value;
      error += count * difference * difference;
      total += count * value * value;
    }
  }
  return total > 0 ? error / total : 0;
}

ScaleEstimate estimate_scale(const LogHistogram& histogram, float amax, const TensorFormat& format,
                             const EstimatorOptions& options) {
  ScaleEstimate estimate;
  const float amax_scale = scale_from_amax(amax, format);
  switch (options.kind) {
    case Estimator::kAmax:
      estimate.scale = amax_scale;
      break;
    case Estimator::kPercentile: {
      const auto quantile = static_cast<float>(histogram.quantile(options.quantile * options.clip));
      estimate.fell_back = quantile == 0 && amax > 0;
      estimate.scale = estimate.fell_back ? amax_scale : scale_from_amax(std::min(amax, quantile), format);
      break;
    }
    case Estimator::kMse:
      estimate.scale = mse_scale(histogram, amax, format);
      break;
    case Estimator::kMargin:
      estimate.scale = scale_from_amax(amax / static_cast<float>(options.margin), format);
      break;
  }
  estimate.error = expected_error(histogram, estimate.scale, format.element);
  estimate.amax_error = expected_error(histogram, amax_scale, format.element);
  estimate.saturated = histogram.share_above(static_cast<double>(estimate.scale) * element_info(format.element).max);
  estimate.underflowed = histogram.share_below(static_cast<double>(estimate.scale) * smallest_kept(format.element));
  return estimate;
}

}  // namespace octavo
