// ModelShape in JSON, as plan files and sensitivity files hold it. Include only in .cc files: it brings the JSON
// library.
#pragma once

#include "base/json.h"
#include "precision/plan_file.h"

namespace octavo {

Json json_of(const ModelShape& shape);
// `where`: the file. Error: a key that is missing or of the wrong type.
Result<ModelShape> read_model_shape(const Json& file, const std::filesystem::path& where);

}  // namespace octavo
