// Calibration statistics on disk: all counts in an .npz (numpy reads it, and so does a later run), and what a person
// wants to know of them as JSON.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"
#include "quantize/estimator.h"
#include "quantize/statistics.h"

namespace octavo {

inline constexpr std::string_view kStatisticsName = "calibration.npz", kStatisticsReportName = "calibration.json";

// Arrays: PLACE/histogram u8 [n] of bins PLACE/first_bin u8 [1] on (bins of 1/16 octave: statistics.h), PLACE/damaged
// u8 [2] (NaN, infinite), PLACE/channel_amax f4 [channels].
Result<void> write_statistics(const std::filesystem::path& path, const StatisticsMap& statistics);
Result<StatisticsMap> read_statistics(const std::filesystem::path& path);

// Per place: values, amax, quantiles, NaN and infinite counts; and under the scale that `options` estimates for
// `format`: the scale, its error beside amax's, saturated and underflowed shares; and
// what was folded into the weights, where something was. A JSON object as text.
std::string statistics_report(const StatisticsMap& statistics, const TensorFormat& format,
                              const EstimatorOptions& options, std::string_view transforms = {});

}  // namespace octavo
