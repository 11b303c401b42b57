// The sensitivity of a model's layers, as `octavo sensitivity` wrote it: read for the acceptance report.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "checkpoint/model_config.h"

namespace octavo {

// The file's document, checked: every field that a report shows is there and of its type, layers lie within the model.
// Error: not such a file, or one of another model (names what differs).
Result<Json> read_sensitivity(const std::filesystem::path& path, const ModelConfig& config);

// Of each scheme: {"scheme", "layers", "free", "watch", "keep_wide", "lowest", "lowest_positive", "highest", "worst"};
// the last are the indices of the up to ten entries that cost the most.
Json sensitivity_summary(const Json& sensitivity);

}  // namespace octavo
