// The functions that templates can name: filters, tests, globals, methods of strings, lists and dictionaries.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace octavo::jinja {

using TestFunction = bool (*)(const Value& input, const Arguments& arguments);

struct Builtin {
  std::string_view name;
  NativeFunction function;
};

// A filter gets its input as `self`.
NativeFunction find_filter(std::string_view name);
bool has_filter(std::string_view name);
bool is_unsupported_filter(std::string_view name);  // jinja2 has it, this interpreter does not
TestFunction find_test(std::string_view name);
bool has_test(std::string_view name);
// range, namespace, dict, cycler, joiner, raise_exception, strftime_now.
void add_globals(Interpreter::Variables* variables);

// A method of the object's Python type; null when there is none of that name.
NativeFunction find_method(const Value& object, std::string_view name);
// Attributes that exist in Python and that the immutable sandbox refuses: append, pop, __class__, ...
bool is_unsafe_attribute(const Value& object, std::string_view name);

// Each part of the tables, by topic.
std::span<const Builtin> text_filters();
std::span<const Builtin> sequence_filters();
std::span<const Builtin> selection_filters();
std::span<const Builtin> number_filters();
std::span<const Builtin> string_methods();
std::span<const Builtin> string_class_methods();
std::span<const Builtin> container_methods(Kind kind);

// Arguments bound to parameters as Python binds them. A parameter without a name can only be given by position.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names,
             size_t required = 0);
  const Value* get(size_t index) const { return values_[index]; }  // null when not given
  bool has(size_t index) const { return values_[index] != nullptr; }
  bool given(size_t index) const { return has(index) && !values_[index]->is_none(); }
  const Value& operator[](size_t index) const { return *values_[index]; }
  bool boolean(size_t index, bool otherwise) const;
  int64_t integer(size_t index, int64_t otherwise) const;
  std::string string(size_t index, std::string_view otherwise) const;  // throws when it is not text

 private:
  std::string function_;
  std::vector<const Value*> values_;
};

// The value of a dotted attribute path ("a.b.0") as the filters' attribute= arguments read it.
class AttributePath {
 public:
  explicit AttributePath(const Value* attribute);  // null or none: the item itself
  Value of(Interpreter& interpreter, Value item, const Value* otherwise = nullptr) const;

 private:
  std::vector<Value> parts_;
};

}  // namespace octavo::jinja
