// object[start:stop:step].
#pragma once

#include "text/jinja/value.h"

namespace octavo::jinja {

// Bounds are integers or none.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace octavo::jinja
