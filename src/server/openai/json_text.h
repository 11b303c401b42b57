// JSON text that any strict parser accepts: invalid UTF-8 becomes U+FFFD, no NaN and no infinity.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace octavo {

// One line.
std::string to_text(const Json& json);
// A quoted and escaped string.
std::string json_string(std::string_view text);
// A log-probability that JSON can hold: NaN and what is below -9999 become -9999. The shortest digits that give the
// same float again.
double json_logprob(float logprob);

}  // namespace octavo
