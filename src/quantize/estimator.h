// Estimators: one static scale for activations from what calibration saw of them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "formats/tensor_format.h"
#include "quantize/statistics.h"

namespace octavo {

enum class Estimator : uint8_t {
  kAmax,        // the largest magnitude
  kPercentile,  // a quantile of the values that a higher one does not clip away as outliers
  kMse,         // least squared error over a search below amax
  kMargin,      // amax / margin: headroom for values that calibration did not see
};

struct EstimatorOptions {
  Estimator kind = Estimator::kAmax;
  double quantile = 0.999, clip = 0.9999;  // kPercentile
  double margin = 0.9;                     // kMargin
};

// "amax", "mse", "percentile", "percentile:99.9:99.99", "margin", "margin:0.9".
Result<EstimatorOptions> parse_estimator(std::string_view text);
std::string estimator_text(const EstimatorOptions& options);

struct ScaleEstimate {
  float scale = 1;
  double error = 0, amax_error = 0;  // relative squared error on the calibration's values, with this scale and amax's
  double saturated = 0;              // share of the values beyond the largest element
  double underflowed = 0;            // share of the values other than 0 that round to 0
  bool fell_back = false;  // the estimator gave nothing (a percentile of values that are nearly all zero): amax

  bool loses_to_amax() const { return error > amax_error * 1.0001; }
};

std::string fallback_note(std::string_view place, const EstimatorOptions& options);

// `format`: its element and the type of its scale.
ScaleEstimate estimate_scale(const LogHistogram& histogram, float amax, const TensorFormat& format,
                             const EstimatorOptions& options);

// Relative squared error of the histogram's values under a scale: each bin stands for eight values spread over it.
double expected_error(const LogHistogram& histogram, float scale, ElementType element);

}  // namespace octavo
