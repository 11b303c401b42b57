// Python's operators over Values: truth, equality, order, hashing, arithmetic, `in`.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/jinja/value.h"

namespace octavo::jinja {

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kNegate,
  kPlus,
  kNot,
};

const char* spelling(Operator op);  // "+"

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
bool same_object(const Value& a, const Value& b);  // Python's `is`
size_t hash_of(const Value& value);                // throws for lists and dictionaries
size_t hash_of_text(std::string_view text);        // what hash_of gives for a string
bool is_hashable(const Value& value);

// Arithmetic; throws what Python would raise.
Value binary(Operator op, const Value& a, const Value& b);
Value unary(Operator op, const Value& a);
// ==, !=, <, <=, >, >=, in, not in.
bool compare(Operator op, const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);

// Throws the message of an undefined value.
[[noreturn]] void raise_undefined(const Value& undefined);
inline void require_defined(const Value& value) {
  if (value.is_undefined()) raise_undefined(value);
}

}  // namespace octavo::jinja
