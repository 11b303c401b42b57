// Looking up built-in functions, and binding their arguments.
#include "text/jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

NativeFunction find(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& row : table)
    if (row.name == name) return row.function;
  return nullptr;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

NativeFunction find_filter(std::string_view name) {
  for (const auto table : {text_filters(), sequence_filters(), selection_filters(), number_filters()})
    if (const NativeFunction function = find(table, name)) return function;
  return nullptr;
}

bool is_unsupported_filter(std::string_view name) {
  return is_one_of(name,
                   {"filesizeformat", "pprint", "random", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr"});
}

bool has_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}
bool has_test(std::string_view name) {
  return find_test(name) != nullptr;
}

NativeFunction find_method(const Value& object, std::string_view name) {
  if (object.is_string()) {
    const NativeFunction method = find(string_methods(), name);
    return method != nullptr ? method : find(string_class_methods(), name);
  }
  return find(container_methods(object.kind()), name);
}

bool is_unsafe_attribute(const Value& object, std::string_view name) {
  if (object.is(Kind::kNamespace)) return false;
  if (name.starts_with("__"))
    return is_one_of(name, {"__class__",       "__init__",
                            "__new__",         "__doc__",
                            "__dir__",         "__eq__",
                            "__ne__",          "__lt__",
                            "__le__",          "__gt__",
                            "__ge__",          "__hash__",
                            "__repr__",        "__str__",
                            "__format__",      "__getattribute__",
                            "__setattr__",     "__delattr__",
                            "__reduce__",      "__reduce_ex__",
                            "__sizeof__",      "__init_subclass__",
                            "__subclasshook__"}) &&
           !object.is_undefined();
  if (object.is(Kind::kList))
    return is_one_of(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
  if (object.is(Kind::kDict)) return is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"});
  return false;
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names, size_t required)
    : function_(function), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size())
    raise(fmt::format("{}() takes at most {} argument(s) ({} given)", function, names.size(),
                      arguments.positional.size()));
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto* found = name.empty() ? names.end() : std::find(names.begin(), names.end(), name);
    if (found == names.end()) raise(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    const Value*& place = values_[static_cast<size_t>(found - names.begin())];
    if (place != nullptr) raise(fmt::format("{}() got multiple values for argument '{}'", function, name));
    place = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (values_[i] == nullptr)
      raise(fmt::format("{}() missing required argument: '{}' (pos {})", function, *(names.begin() + i), i + 1));
}

bool Parameters::boolean(size_t index, bool otherwise) const {
  return has(index) ? truthy(*values_[index]) : otherwise;
}

int64_t Parameters::integer(size_t index, int64_t otherwise) const {
  if (!has(index)) return otherwise;
  require_defined(*values_[index]);
  if (!values_[index]->is_integer())
    raise(fmt::format("{}(): '{}' object cannot be interpreted as an integer", function_, type_name(*values_[index])));
  return values_[index]->as_integer();
}

std::string Parameters::string(size_t index, std::string_view otherwise) const {
  if (!has(index)) return std::string(otherwise);
  if (!values_[index]->is_string())
    raise(fmt::format("{}() argument {} must be str, not {}", function_, index + 1, type_name(*values_[index])));
  return values_[index]->text();
}

AttributePath::AttributePath(const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) return;
  if (!attribute->is_string()) {
    parts_.push_back(*attribute);
    return;
  }
  const std::string& path = attribute->text();
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string::npos;
    parts_.push_back(is_number ? Value::integer(std::stoll(part)) : Value::string(part));
    begin = end + 1;
  }
}

Value AttributePath::of(Interpreter& interpreter, Value item, const Value* otherwise) const {
  for (const Value& part : parts_) {
    item = interpreter.item(item, part);
    if (item.is_undefined() && otherwise != nullptr && !otherwise->is_none()) item = *otherwise;
  }
  return item;
}

}  // namespace octavo::jinja
