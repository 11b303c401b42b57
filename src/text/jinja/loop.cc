// The `loop` variable, and how macros print.
#include "text/jinja/loop.h"

#include "text/jinja/macro.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace octavo::jinja {

std::string MacroObject::description() const {
  return body->name.empty() ? "<Macro anonymous>" : "<Macro " + repr_of_text(body->name) + ">";
}

LoopObject::LoopObject(Value sequence, std::shared_ptr<IteratorObject> items, int depth0)
    : Object(sizeof(*this), items->nesting + 1),
      sequence_(std::move(sequence)),
      items_(std::move(items)),
      depth0_(depth0) {}

bool LoopObject::advance(Value* item) {
  if (!after_.is_missing()) {
    *item = std::exchange(after_, Value());
  } else if (!items_->next(item)) {
    return false;
  }
  ++index0_;
  before_ = std::move(current_);
  current_ = *item;
  return true;
}

bool LoopObject::peek(Value* item) {
  if (after_.is_missing() && !items_->next(&after_)) return false;
  *item = after_;
  return true;
}

size_t LoopObject::length() {
  if (known_length_ >= 0) return static_cast<size_t>(known_length_);
  if (!sequence_.is_missing() && has_length(sequence_)) {
    known_length_ = static_cast<int64_t>(length_of(sequence_));
  } else {
    std::vector<Value> rest;
    Charge rest_charge(0);
    for (Value item; items_->next(&item);) {
      spend_steps(1);
      rest_charge.grow(sizeof(Value));
      rest.push_back(std::move(item));
    }
    known_length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (after_.is_missing() ? 0 : 1);
    items_ = iterate(Value::list(std::move(rest)));
  }
  return static_cast<size_t>(known_length_);
}

bool LoopObject::attribute(std::string_view name, Value* result) {
  const auto length_left = [this] { return static_cast<int64_t>(length()) - index0_; };
  if (name == "index") {
    *result = Value::integer(index0_ + 1);
  } else if (name == "index0") {
    *result = Value::integer(index0_);
  } else if (name == "first") {
    *result = Value::boolean(index0_ == 0);
  } else if (name == "last") {
    Value ignored;
    *result = Value::boolean(!peek(&ignored));
  } else if (name == "length") {
    *result = Value::integer(static_cast<int64_t>(length()));
  } else if (name == "revindex") {
    *result = Value::integer(length_left());
  } else if (name == "revindex0") {
    *result = Value::integer(length_left() - 1);
  } else if (name == "depth") {
    *result = Value::integer(depth0_ + 1);
  } else if (name == "depth0") {
    *result = Value::integer(depth0_);
  } else if (name == "previtem") {
    *result = index0_ == 0 ? Value::undefined("there is no previous item") : before_;
  } else if (name == "nextitem") {
    if (!peek(result)) *result = Value::undefined("there is no next item");
  } else {
    return false;
  }
  return true;
}

Value LoopObject::cycle(const std::vector<Value>& values) const {
  if (values.empty()) raise("no items for cycling given");
  return values[static_cast<size_t>(index0_) % values.size()];
}

bool LoopObject::changed(const std::vector<Value>& values) {
  const Value now = Value::tuple(values);
  if (!last_changed_.is_missing() && equal(now, last_changed_)) return false;
  last_changed_ = now;
  return true;
}

}  // namespace octavo::jinja
