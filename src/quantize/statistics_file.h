// Calibration statistics on disk: all counts in an .npz (numpy reads it, and so does a later run), and what a person
// wants to know of them as JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "quantize/calibration_data.h"
#include "quantize/estimator.h"
#include "quantize/statistics.h"

namespace octavo {

inline constexpr std::string_view kStatisticsName = "calibration.npz", kStatisticsReportName = "calibration.json";

// Arrays: PLACE/histogram u8 [n] of bins PLACE/first_bin u8 [1] on (bins of 1/16 octave: statistics.h), PLACE/damaged
// u8 [2] (NaN, infinite), PLACE/channel_amax f4 [channels].
Result<void> write_statistics(const std::filesystem::path& path, const StatisticsMap& statistics);
Result<StatisticsMap> read_statistics(const std::filesystem::path& path);

// What the statistics come from.
struct ReportSource {
  std::string_view transforms;              // what was folded into the weights; empty: nothing
  const CalibrationSet* samples = nullptr;  // and the options they were drawn with
  int64_t length = 0;
  uint64_t seed = 0;
  std::vector<std::vector<int64_t>> expert_tokens = {};  // by layer and expert; dense layers are empty
  std::vector<std::string> notes = {};
};

// The text: files, seed, samples, coverage of positions and experts, and what was noted. Per place: values, amax,
// quantiles, NaN and infinite counts; and under the scale that `options` estimates for the place's element (`formats`;
// E4M3 for places that are not in it): the scale, its error beside amax's, saturated and underflowed shares. A JSON
// object as text.
std::string statistics_report(const StatisticsMap& statistics, const std::map<std::string, TensorFormat>& formats,
                              const EstimatorOptions& options, const ReportSource& source);

}  // namespace octavo
