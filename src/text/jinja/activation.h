// The variables of one running function: the template itself, a macro call, a level of a recursive loop.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace octavo::jinja {

struct Activation {
  Activation(int slot_count, std::shared_ptr<Activation> enclosing)
      : charge(sizeof(*this) + static_cast<size_t>(slot_count) * sizeof(Value)),
        slots(static_cast<size_t>(slot_count)),
        outer(std::move(enclosing)) {}
  Charge charge;
  std::vector<Value> slots;
  std::shared_ptr<Activation> outer;  // where the function was defined
};
using ActivationPtr = std::shared_ptr<Activation>;

}  // namespace octavo::jinja
