// Calling macros, loops and built-in functions; applying filters and tests.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/interpreter_level.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace octavo::jinja {

Value Interpreter::call(const Value& callee, Arguments arguments) {
  switch (callee.kind()) {
    case Kind::kUndefined:
      raise_undefined(callee);
    case Kind::kMacro:
      return call_macro(callee.as<MacroObject>(), std::move(arguments));
    case Kind::kFunction: {
      const auto& function = callee.as<FunctionObject>();
      return function.function(*this, function.self, arguments);
    }
    case Kind::kLoop: {
      auto& loop = callee.as<LoopObject>();
      if (loop.recursive == nullptr) raise("The loop must have the 'recursive' marker to be called recursively.");
      if (arguments.positional.size() != 1 || !arguments.keywords.empty()) raise("loop() takes one argument");
      return run_recursive(*loop.recursive, arguments.positional[0], loop.closure, loop.depth0() + 1);
    }
    default:
      raise(fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

Value Interpreter::filter(const std::string& name, const Value& input, const Arguments& arguments) {
  const NativeFunction function = find_filter(name);
  if (function == nullptr) {
    if (is_unsupported_filter(name)) raise(fmt::format("the filter '{}' is not supported", name));
    raise(fmt::format("No filter named {}.", repr_of_text(name)));
  }
  return function(*this, input, arguments);
}

bool Interpreter::test(const std::string& name, const Value& input, const Arguments& arguments) {
  const TestFunction function = find_test(name);
  if (function == nullptr) raise(fmt::format("No test named {}.", repr_of_text(name)));
  return function(input, arguments);
}

Value Interpreter::make_namespace(Dict attributes) {
  const auto object = std::make_shared<NamespaceObject>();
  object->charge.grow(attributes.size() * 4 * sizeof(Value));
  object->attributes = std::move(attributes);
  keep(object);
  return Value::object(Kind::kNamespace, object);
}

Value Interpreter::call_macro(const MacroObject& macro, Arguments arguments) {
  const MacroBody& body = *macro.body;
  const std::string name = body.name.empty() ? "None" : repr_of_text(body.name);
  const size_t wanted = body.parameters.size(), given = arguments.positional.size();
  auto& keywords = arguments.keywords;
  const auto take_keyword = [&keywords](std::string_view key, Value* value) {
    for (auto it = keywords.begin(); it != keywords.end(); ++it) {
      if (it->first != key) continue;
      *value = std::move(it->second);
      keywords.erase(it);
      return;
    }
  };
  std::vector<Value> values(arguments.positional.begin(),
                            arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, given)));
  bool found_caller = false;
  for (size_t i = 0; i < wanted; ++i) {
    const std::string& parameter = body.parameters[i]->name;
    found_caller |= parameter == "caller";
    if (i < given) continue;
    values.emplace_back();
    take_keyword(parameter, &values.back());
  }
  Value caller;
  if (body.uses_caller && !found_caller) {
    take_keyword("caller", &caller);
    if (caller.is_missing() || caller.is_none()) caller = Value::undefined("No caller defined");
  }
  if (body.kwargs_slot < 0 && !keywords.empty()) {
    for (const auto& [key, value] : keywords)
      if (key == "caller")
        raise(fmt::format(
            "macro {} was invoked with two values for the special caller argument. This is most likely a bug.", name));
    raise(fmt::format("macro {} takes no keyword argument {}", name, repr_of_text(keywords[0].first)));
  }
  if (body.varargs_slot < 0 && given > wanted)
    raise(fmt::format("macro {} takes not more than {} argument(s)", name, wanted));
  Dict kwargs;
  std::vector<Value> varargs;
  for (auto& [key, value] : keywords) kwargs.set(Value::string(key), std::move(value));
  for (size_t i = wanted; i < given; ++i) varargs.push_back(arguments.positional[i]);
  return run_macro(macro, std::move(values), caller, make_dict(std::move(kwargs)), Value::tuple(std::move(varargs)));
}

Value Interpreter::run_macro(const MacroObject& macro, std::vector<Value> values, const Value& caller, Value kwargs,
                             Value varargs) {
  const Level level(this);
  if (macro_depth_ >= max_macro_depth_)
    throw Failure{.what = "macros call each other too deeply",
                  .expected = fmt::format("at most {} levels", max_macro_depth_)};
  ++macro_depth_;
  const MacroBody& body = *macro.body;
  auto activation = std::make_shared<Activation>(body.slot_count, macro.closure);
  const FinishGuard guard(&finished_, activation);
  const auto set = [&activation](int slot, Value value) {
    if (slot >= 0) activation->slots[static_cast<size_t>(slot)] = std::move(value);
  };
  enter(body.scope, activation);
  set(body.caller_slot, caller);
  set(body.kwargs_slot, std::move(kwargs));
  set(body.varargs_slot, std::move(varargs));
  for (size_t i = 0; i < values.size(); ++i) set(body.parameters[i]->slot.slot, values[i]);
  const size_t first_default = values.size() - body.defaults.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_missing()) continue;
    const int slot = body.parameters[i]->slot.slot;
    if (i >= first_default) {
      set(slot, evaluate(*body.defaults[i - first_default], activation));
    } else {
      set(slot, Value::undefined(fmt::format("parameter {} was not provided", repr_of_text(body.parameters[i]->name))));
    }
  }
  std::string text;
  capture(body.body, activation, &text);
  --macro_depth_;
  return Value::string(std::move(text));
}

}  // namespace octavo::jinja
