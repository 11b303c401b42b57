// The `loop` variable.
#pragma once

#include <cstdint>
#include <memory>

#include "text/jinja/activation.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace octavo::jinja {

class LoopObject : public Object {
 public:
  // `sequence` gives the length where it has one (pass a missing value when `items` yields fewer).
  LoopObject(Value sequence, std::shared_ptr<IteratorObject> items, int depth0);

  bool advance(Value* item);  // false: the loop is over
  // Looks ahead by one item; false when there is none.
  bool peek(Value* item);
  // Walks to the end of an iterator, once, where nothing else tells the length.
  size_t length();

  int64_t index0() const { return index0_; }
  int depth0() const { return depth0_; }
  // loop.NAME; false when there is no such attribute.
  bool attribute(std::string_view name, Value* result);
  Value cycle(const std::vector<Value>& values) const;
  bool changed(const std::vector<Value>& values);
  void forget_changed() { last_changed_ = Value(); }

  const ForStatement* recursive = nullptr;  // loop(items) renders this loop again, over other items
  ActivationPtr closure;

 private:
  Value sequence_, current_, before_, after_, last_changed_;
  std::shared_ptr<IteratorObject> items_;
  int64_t index0_ = -1;
  int64_t known_length_ = -1;
  int depth0_;
};

}  // namespace octavo::jinja
