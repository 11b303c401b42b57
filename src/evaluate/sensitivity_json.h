// Entries of a sensitivity file in JSON. Include only in .cc files: it brings the JSON library.
#pragma once

#include "base/json.h"
#include "evaluate/sensitivity_file.h"

namespace octavo {

Json json_of(const SensitivityEntry& entry);
Json json_of(const Sensitivity& sensitivity);
// `where`: the file, and which entry.
Result<SensitivityEntry> read_sensitivity_entry(const Json& value, std::string_view where);

}  // namespace octavo
