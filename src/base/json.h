// JSON from outside, parsed with limits. Include only in .cc files (it brings the whole JSON library).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace octavo {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;
  size_t max_bytes = size_t{256} << 20;
};

// Strict JSON: depth and size limited, duplicate keys refused, invalid UTF-8 refused. `where` names the source in
// errors.
Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});

}  // namespace octavo
