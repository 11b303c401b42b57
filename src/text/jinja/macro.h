// Macros, and the `caller` of call blocks, as values.
#pragma once

#include <string>

#include "text/jinja/activation.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace octavo::jinja {

struct MacroObject : Object {
  MacroObject(const MacroBody* macro, ActivationPtr defined_in)
      : Object(sizeof(*this)), body(macro), closure(std::move(defined_in)) {}
  std::string description() const;  // what jinja2 prints for it
  const MacroBody* body;
  ActivationPtr closure;
};

}  // namespace octavo::jinja
