// Decides where every variable of a template lives, with jinja2's scoping rules.
#pragma once

#include "text/jinja/ast.h"

namespace octavo::jinja {

// Fills the slots and scopes of the tree. Throws Failure for what jinja2 refuses when it compiles: an assignment to
// `loop`, filters and tests that do not exist (outside of `if`).
void resolve_names(Template* parsed);

}  // namespace octavo::jinja
