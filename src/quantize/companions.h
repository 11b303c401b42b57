// The files of a model folder that are not its weights.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace octavo {

// Copies what belongs to a model beside its weights and config.json: tokenizer, chat template, generation config,
// licence. Returns the names.
Result<std::vector<std::string>> copy_companions(const std::filesystem::path& source, const std::filesystem::path& out);

}  // namespace octavo
