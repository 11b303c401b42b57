// Tokens -> syntax tree, with jinja2's grammar. What is not supported is an error here, with its position.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace octavo::jinja {

// `source`: normalized, valid UTF-8. Throws Failure.
Template parse_template(std::string_view source);

}  // namespace octavo::jinja
