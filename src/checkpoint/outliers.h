// Outlier channels in a checkpoint: quantization_config.octavo_outliers, and two tensors beside each quantized weight,
// MODULE.outlier_channels I32 [n], ascending, and MODULE.outlier_weight BF16 [rows, n]. The weight's codes are zero in
// these columns. Only Octavo reads them. Include only in .cc files: it brings the JSON library.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "precision/plan.h"

namespace octavo {

inline constexpr double kMostOutliers = 0.1;  // of a layer's input channels

// Of `cols` input channels: rounded, at least one.
int64_t outlier_count(int64_t cols, double share);
std::string outlier_channels_name(const LinearModule& module);
std::string outlier_weight_name(const LinearModule& module);

// Writes how many outlier channels each quantized module has into the plan. `config`: the quantization_config. Errors:
// a share out of range, another dialect, tensors that are missing or of the wrong type or shape.
Result<void> plan_outliers(const Json& config, std::string_view dialect, const std::vector<LinearModule>& modules,
                           const TensorReader& tensors, PrecisionPlan& plan);

// Of a module whose plan has some. Error: channels out of range or order, a weight that is not finite.
Result<StoredOutliers> read_outliers(const LinearModule& module, const TensorReader& tensors,
                                     std::set<std::string>& used);

}  // namespace octavo
