// Truth, equality, order, hashing and membership. Arithmetic is in arithmetic.cc.
#include "text/jinja/operators.h"

#include <fmt/format.h>
#include <string.h>

#include <cmath>
#include <functional>

#include "text/jinja/loop.h"

namespace octavo::jinja {
namespace {

// Exact for 64-bit integers and doubles alike: x87 long double has a 64-bit significand.
long double exact(const Value& value) {
  return value.is(Kind::kFloat) ? static_cast<long double>(value.as_real())
                                : static_cast<long double>(value.as_integer());
}

bool equal_sequences(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i], b[i])) return false;
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other)) return false;
  }
  return true;
}

template <class T>
bool in_order(Operator op, const T& a, const T& b) {
  switch (op) {
    case Operator::kLess:
      return a < b;
    case Operator::kLessEqual:
      return a <= b;
    case Operator::kGreater:
      return a > b;
    default:
      return a >= b;
  }
}

bool ordered(Operator op, const Value& a, const Value& b) {
  spend_steps(1);
  if (a.is_undefined()) raise_undefined(a);
  if (b.is_undefined()) raise_undefined(b);
  if (a.is_number() && b.is_number()) return in_order(op, exact(a), exact(b));
  if (a.is_string() && b.is_string()) {
    spend_steps(std::min(a.text().size(), b.text().size()) / 64);
    return in_order(op, a.text(), b.text());
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto &left = a.items(), &right = b.items();
    for (size_t i = 0; i < left.size() && i < right.size(); ++i)
      if (!equal(left[i], right[i])) return ordered(op, left[i], right[i]);
    return in_order(op, left.size(), right.size());
  }
  raise(fmt::format("'{}' not supported between instances of '{}' and '{}'", spelling(op), type_name(a), type_name(b)));
}

size_t combine(size_t seed, size_t hash) {
  return seed * 1000003 ^ hash;
}

}  // namespace

const char* spelling(Operator op) {
  constexpr const char* kSpelling[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "-", "+", "not"};
  return kSpelling[static_cast<size_t>(op)];
}

void raise_undefined(const Value& undefined) {
  raise(undefined.as<UndefinedObject>().message);
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_integer() != 0;
    case Kind::kFloat:
      return value.as_real() != 0;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kLoop:
      return length_of(value) != 0;
    default:
      return true;
  }
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.pointer() || b.pointer()) return a.pointer() == b.pointer() || (a.is_string() && a.text() == b.text());
  return a.is_none() || (a.is(Kind::kFloat) ? a.as_real() == b.as_real() : a.as_integer() == b.as_integer());
}

bool equal(const Value& a, const Value& b) {
  spend_steps(1);
  if (a.is_number() && b.is_number()) return exact(a) == exact(b);
  if (a.kind() != b.kind()) return false;
  if (a.pointer() == b.pointer()) return true;  // also none == none
  switch (a.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kString:
    case Kind::kBigInt:
      if (a.text().size() != b.text().size()) return false;
      spend_steps(a.text().size() / 64);
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return equal_sequences(a.items(), b.items());
    case Kind::kDict:
      return equal_dicts(a.as<DictObject>().dict, b.as<DictObject>().dict);
    case Kind::kRange: {
      const auto &left = a.as<RangeObject>(), &right = b.as<RangeObject>();
      return left.size == right.size && (left.size == 0 || left.start == right.start) &&
             (left.size < 2 || left.step == right.step);
    }
    default:
      return false;
  }
}

size_t hash_of_text(std::string_view text) {
  return std::hash<std::string_view>()(text);
}

size_t hash_of(const Value& value) {
  spend_steps(1);
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<int64_t>()(value.as_integer());
    case Kind::kFloat: {
      const double real = value.as_real();
      if (real == std::floor(real) && std::abs(real) < 9.2e18) return std::hash<int64_t>()(static_cast<int64_t>(real));
      return std::hash<double>()(real);
    }
    case Kind::kString:
    case Kind::kBigInt:
      spend_steps(value.text().size() / 64);
      return hash_of_text(value.text());
    case Kind::kTuple: {
      size_t hash = 77;
      for (const Value& item : value.items()) hash = combine(hash, hash_of(item));
      return hash;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
      raise(fmt::format("unhashable type: '{}'", type_name(value)));
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kMissing:
      return static_cast<size_t>(value.kind());
    default:
      return std::hash<const void*>()(value.pointer().get());
  }
}

bool is_hashable(const Value& value) {
  if (value.is(Kind::kTuple)) {
    for (const Value& item : value.items())
      if (!is_hashable(item)) return false;
    spend_steps(value.items().size());
    return true;
  }
  return !value.is(Kind::kList) && !value.is(Kind::kDict) && !value.is(Kind::kDictView);
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString: {
      if (!item.is_string())
        raise(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
      const std::string &text = container.text(), &part = item.text();
      spend_steps((text.size() + part.size()) / 64 + 1);
      // memmem is linear in the worst case, std::string::find is not.
      return memmem(text.data(), text.size(), part.data(), part.size()) != nullptr;
    }
    case Kind::kDict:
      return container.as<DictObject>().dict.find(item) != nullptr;
    case Kind::kDictView:
      if (container.as<DictViewObject>().part == DictViewObject::Part::kKeys)
        return container.as<DictViewObject>().entries().find(item) != nullptr;
      break;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kFloat:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kFunction:
      raise(fmt::format("argument of type '{}' is not iterable", type_name(container)));
    default:
      break;
  }
  const auto iterator = iterate(container);
  for (Value element; iterator->next(&element);) {
    spend_steps(1);
    if (equal(element, item)) return true;
  }
  return false;
}

bool compare(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return equal(a, b);
    case Operator::kNotEqual:
      return !equal(a, b);
    case Operator::kIn:
      return contains(b, a);
    case Operator::kNotIn:
      return !contains(b, a);
    default:
      return ordered(op, a, b);
  }
}

}  // namespace octavo::jinja
