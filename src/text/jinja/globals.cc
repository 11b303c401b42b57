// range, namespace, dict, cycler, joiner, raise_exception, strftime_now.
#include <fmt/format.h>

#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace octavo::jinja {
namespace {

constexpr size_t kMaxRange = 100'000;  // jinja2's sandbox has the same limit

Value range(Interpreter&, const Value&, const Arguments& arguments) {
  const Parameters parameters("range", arguments, {"", "", ""}, 1);
  const bool one = !parameters.has(1);
  const int64_t start = one ? 0 : parameters.integer(0, 0), stop = parameters.integer(one ? 0 : 1, 0);
  const int64_t step = parameters.integer(2, 1);
  if (step == 0) raise("range() arg 3 must not be zero");
  auto object = std::make_shared<RangeObject>(start, stop, step);
  if (object->size > kMaxRange)
    raise(fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange));
  return Value::object(Kind::kRange, std::move(object));
}

// What dict() and namespace() make of their arguments.
Dict build_dict(std::string_view name, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1)
    raise(fmt::format("{} expected at most 1 argument, got {}", name, arguments.positional.size()));
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      spend_steps(source.as<DictObject>().dict.size());
      dict = source.as<DictObject>().dict;
    } else {
      const auto items = iterate(source);
      for (Value item; items->next(&item);) {
        spend_steps(1);
        const std::vector<Value> pair = to_vector(item);
        if (pair.size() != 2) raise("dictionary update sequence element has the wrong length; 2 is required");
        dict.set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.keywords) dict.set(Value::string(key), value);
  return dict;
}

Value dict(Interpreter&, const Value&, const Arguments& arguments) {
  return make_dict(build_dict("dict", arguments));
}

Value make_namespace(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  return interpreter.make_namespace(build_dict("namespace", arguments));
}

Value cycler(Interpreter&, const Value&, const Arguments& arguments) {
  if (!arguments.keywords.empty()) raise("cycler() takes no keyword arguments");
  if (arguments.positional.empty()) raise("at least one item has to be provided");
  return Value::object(Kind::kCycler, std::make_shared<CyclerObject>(Value::tuple(arguments.positional)));
}

// Empty the first time, the separator afterwards: `position` of the cycler it is bound to remembers which.
Value join_next(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("joiner", arguments, {});
  auto& state = self.as<CyclerObject>();
  if (state.position++ > 0) return state.items.items()[0];
  return Value::string("");
}

Value joiner(Interpreter&, const Value&, const Arguments& arguments) {
  const Parameters parameters("joiner", arguments, {"sep"});
  const Value separator = parameters.has(0) ? parameters[0] : Value::string(", ");
  const Value state = Value::object(Kind::kCycler, std::make_shared<CyclerObject>(Value::tuple({separator})));
  return Value::object(Kind::kFunction, std::make_shared<FunctionObject>("joiner", join_next, state));
}

Value raise_exception(Interpreter&, const Value&, const Arguments& arguments) {
  const Parameters parameters("raise_exception", arguments, {"message"}, 1);
  raise(to_text(parameters[0]));
}

// %f, %z and %Z as for a Python datetime without a time zone; the rest is strftime's.
Value strftime_now(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Parameters parameters("strftime_now", arguments, {"format"}, 1);
  const std::string source = parameters.string(0, "");
  std::string format;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '%' || i + 1 == source.size()) {
      format += source[i] == '\0' ? ' ' : source[i];
      continue;
    }
    const char kind = source[++i];
    if (kind == 'f') {
      format += "000000";
    } else if (kind != 'z' && kind != 'Z') {
      format += '%';
      if (kind != '\0') format += kind;
    }
  }
  if (format.empty()) return Value::string("");
  const auto seconds = static_cast<std::time_t>(interpreter.now());
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) raise("the time is out of range");
  check_text_size(format.size());
  std::string text(format.size() * 4 + 256, '\0');
  const size_t length = std::strftime(text.data(), text.size(), format.c_str(), &local);
  text.resize(length);
  return Value::string(std::move(text));
}

Value lipsum(Interpreter&, const Value&, const Arguments&) {
  raise("lipsum is not supported in chat templates");
}

constexpr Builtin kGlobals[] = {
    {"range", range},
    {"namespace", make_namespace},
    {"dict", dict},
    {"cycler", cycler},
    {"joiner", joiner},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"lipsum", lipsum},
};

}  // namespace

void add_globals(Interpreter::Variables* variables) {
  for (const Builtin& row : kGlobals)
    variables->try_emplace(
        std::string(row.name),
        Value::object(Kind::kFunction, std::make_shared<FunctionObject>(row.name, row.function, Value::none())));
}

}  // namespace octavo::jinja
