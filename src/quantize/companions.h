// The files of a model folder that are not its weights.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace octavo {

// Names of what belongs to a model beside its weights and config.json: tokenizer, chat template, generation config,
// licence. copy_companions() copies them.
Result<std::vector<std::string>> list_companions(const std::filesystem::path& source);
Result<std::vector<std::string>> copy_companions(const std::filesystem::path& source, const std::filesystem::path& out);

}  // namespace octavo
