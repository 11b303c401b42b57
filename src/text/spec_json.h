// Reading members of the small objects in a tokenizer.json; errors name the part.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace octavo {

// The "type" of a part.
Result<std::string> type_of(const nlohmann::ordered_json& object, std::string_view part);
Result<std::string> text_member(const nlohmann::ordered_json& object, const char* key, std::string_view part);
// Missing or null gives `otherwise`.
Result<bool> bool_member(const nlohmann::ordered_json& object, const char* key, bool otherwise, std::string_view part);
Result<const nlohmann::ordered_json*> array_member(const nlohmann::ordered_json& object, const char* key,
                                                   std::string_view part);

// The error for something that Octavo does not do.
tl::unexpected<Error> unsupported_part(std::string_view part, std::string_view found, std::string_view supported);

}  // namespace octavo
