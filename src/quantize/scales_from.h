// What an earlier quantization hands to the next one: formats, dialect, activation scales and KV cache of a finished
// folder, or calibration statistics alone.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "precision/plan.h"
#include "quantize/statistics.h"

namespace octavo {

struct EarlierScales {
  std::filesystem::path path;
  std::optional<PrecisionPlan> plan;          // of a folder
  std::string dialect;                        // of a folder
  std::map<std::string, float> input_scales;  // of a folder: static activation scales by module
  StatisticsMap statistics;                   // empty where the folder holds none
  // The folder's KV cache: its formats are the plan's.
  std::optional<KvCalibration> kv_calibration;  // octavo_kv.json
  std::vector<KvScales> kv_scales;              // stored as tensors: per layer; empty where no layer has any
  std::string kv_cache_scheme;                  // what quantization_config says of it, JSON; empty: nothing
};

// A quantized model folder (with or without calibration.npz), or a statistics file. Error: a folder whose modules are
// not those of `config`, or that is not quantized in a dialect that is written.
Result<EarlierScales> read_earlier_scales(const std::filesystem::path& path, const ModelConfig& config);

// Error: statistics of a model with other layers.
Result<void> check_statistics(const EarlierScales& earlier, const std::vector<LinearModule>& modules);

// A line for each place whose P99.9 or largest magnitude moved by more than a quarter, and a summary.
inline constexpr double kDrift = 1.25;
std::vector<std::string> drift_notes(const StatisticsMap& before, const StatisticsMap& now);

}  // namespace octavo
