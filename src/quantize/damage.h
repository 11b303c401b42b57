// Errors of values that are NaN or infinite.
#pragma once

#include <string_view>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "quantize/calibration_data.h"
#include "quantize/statistics.h"

namespace octavo {

// Of a weight that is to be quantized.
Error damaged_weight(const TensorEntry& entry, int64_t row, int64_t col);
// Of what a place (quantize/statistics.h) saw in a sample.
Error damaged_activations(std::string_view place, const CalibrationSet& samples, int64_t sample);

}  // namespace octavo
