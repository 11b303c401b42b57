// The parser behind read_kv_calibration, for text that is in memory.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/kv_calibration.h"

namespace octavo {

Result<KvCalibration> parse_kv_calibration(std::string_view text, const std::string& where, const ModelConfig& config);

}  // namespace octavo
