// JSON values as template values. Only for .cc files: it brings the whole JSON library.
#pragma once

#include "base/json.h"
#include "text/jinja/value.h"

namespace octavo::jinja {

// Throws Failure for invalid UTF-8 and for nesting beyond kMaxNesting.
Value from_json(const Json& json);

}  // namespace octavo::jinja
