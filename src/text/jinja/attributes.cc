// object.name and object[key]: Python's attributes first for the one, items first for the other.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

Value no_attribute(const Value& object, std::string_view name) {
  return Value::undefined(
      fmt::format("{} has no attribute {}", repr_of_text(object_type_name(object)), repr_of_text(name)));
}

bool is_index(const Value& key, size_t size, size_t* index) {
  if (!key.is_integer()) return false;
  const int64_t at = key.as_integer() < 0 ? key.as_integer() + static_cast<int64_t>(size) : key.as_integer();
  if (at < 0 || at >= static_cast<int64_t>(size)) return false;
  *index = static_cast<size_t>(at);
  return true;
}

// object[key]; false where Python raises TypeError or LookupError.
bool find_item(const Value& object, const Value& key, Value* result) {
  size_t index = 0;
  switch (object.kind()) {
    case Kind::kUndefined:
      raise_undefined(object);
    case Kind::kDict: {
      if (!is_hashable(key)) return false;
      const Value* found = object.as<DictObject>().dict.find(key);
      if (found == nullptr) return false;
      *result = *found;
      return true;
    }
    case Kind::kList:
    case Kind::kTuple:
      if (!is_index(key, object.items().size(), &index)) return false;
      *result = object.items()[index];
      return true;
    case Kind::kRange:
      if (!is_index(key, object.as<RangeObject>().size, &index)) return false;
      *result = object.as<RangeObject>().at(index);
      return true;
    case Kind::kString: {
      if (!is_index(key, object.text_length(), &index)) return false;
      const std::string& text = object.text();
      spend_steps(text.size() / 64);
      const size_t begin = text.size() == object.text_length() ? index : byte_offset(text, index);
      size_t end = begin;
      next_code_point(text, &end);
      *result = Value::string(text.substr(begin, end - begin), object.is_markup());
      return true;
    }
    default:
      return false;
  }
}

Value bind_method(const Value& object, std::string_view name, NativeFunction method) {
  return Value::object(Kind::kFunction, std::make_shared<FunctionObject>(name, method, object));
}

Value loop_cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  return self.as<LoopObject>().cycle(arguments.positional);
}

Value loop_changed(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  interpreter.keep(self.pointer());
  return Value::boolean(self.as<LoopObject>().changed(arguments.positional));
}

Value cycler_next(Interpreter&, const Value& self, const Arguments&) {
  auto& cycler = self.as<CyclerObject>();
  const auto& items = cycler.items.items();
  const Value current = items[cycler.position];
  cycler.position = (cycler.position + 1) % items.size();
  return current;
}

Value cycler_reset(Interpreter&, const Value& self, const Arguments&) {
  self.as<CyclerObject>().position = 0;
  return Value::none();
}

bool macro_attribute(const MacroObject& macro, std::string_view name, Value* result) {
  const MacroBody& body = *macro.body;
  if (name == "name") {
    *result = body.name.empty() ? Value::none() : Value::string(body.name);
  } else if (name == "arguments") {
    std::vector<Value> names;
    for (const auto& parameter : body.parameters) names.push_back(Value::string(parameter->name));
    *result = Value::tuple(std::move(names));
  } else if (name == "catch_kwargs" || name == "catch_varargs" || name == "caller") {
    *result = Value::boolean(name == "caller" ? body.uses_caller
                                              : (name == "catch_kwargs" ? body.kwargs_slot : body.varargs_slot) >= 0);
  } else {
    return false;
  }
  return true;
}

bool number_attribute(const Value& number, std::string_view name, Value* result) {
  const bool is_real = number.is(Kind::kFloat);
  if (name == "real" || (name == "numerator" && !is_real)) {
    *result = is_real ? number : Value::integer(number.as_integer());
  } else if (name == "imag") {
    *result = is_real ? Value::real(0) : Value::integer(0);
  } else if (name == "denominator" && !is_real) {
    *result = Value::integer(1);
  } else {
    return false;
  }
  return true;
}

// Python's getattr; false where it raises AttributeError.
bool find_attribute(const Value& object, std::string_view name, Value* result) {
  if (is_unsafe_attribute(object, name)) {
    *result = Value::undefined(fmt::format("access to attribute {} of {} object is unsafe.", repr_of_text(name),
                                           repr_of_text(type_name(object))),
                               true);
    return true;
  }
  switch (object.kind()) {
    case Kind::kUndefined:
      raise_undefined(object);
    case Kind::kNamespace: {
      const Value* found = object.as<NamespaceObject>().attributes.find(name);
      if (found != nullptr) *result = *found;
      return found != nullptr;
    }
    case Kind::kLoop:
      if (object.as<LoopObject>().attribute(name, result)) return true;
      if (name != "cycle" && name != "changed") return false;
      *result = bind_method(object, name, name == "cycle" ? loop_cycle : loop_changed);
      return true;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return number_attribute(object, name, result);
    case Kind::kMacro:
      return macro_attribute(object.as<MacroObject>(), name, result);
    case Kind::kCycler: {
      const auto& cycler = object.as<CyclerObject>();
      if (name == "current") {
        *result = cycler.items.items()[cycler.position];
      } else if (name == "next" || name == "reset") {
        *result = bind_method(object, name, name == "next" ? cycler_next : cycler_reset);
      } else {
        return false;
      }
      return true;
    }
    default: {
      const NativeFunction method = find_method(object, name);
      if (method != nullptr) *result = bind_method(object, name, method);
      return method != nullptr;
    }
  }
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  Value result;
  if (find_attribute(object, name, &result)) return result;
  if (object.is(Kind::kDict))
    if (const Value* found = object.as<DictObject>().dict.find(name)) return *found;
  return no_attribute(object, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  Value result;
  if (find_item(object, key, &result)) return result;
  if (key.is_string()) {
    if (find_attribute(object, key.text(), &result)) return result;
    return no_attribute(object, key.text());
  }
  return Value::undefined(fmt::format("{} has no element {}", object_type_name(object), repr(key)));
}

}  // namespace octavo::jinja
