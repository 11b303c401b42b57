// What can stand behind `is`.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

void no_arguments(const Arguments& arguments) {
  const Parameters parameters("test", arguments, {});
}

template <bool (*check)(const Value&)>
bool simple(const Value& input, const Arguments& arguments) {
  no_arguments(arguments);
  return check(input);
}

template <Operator op>
bool comparison(const Value& input, const Arguments& arguments) {
  const Parameters parameters(spelling(op), arguments, {""}, 1);
  return compare(op, input, parameters[0]);
}

bool remainder_is(const Value& input, const Value& divisor, int64_t expected) {
  return equal(binary(Operator::kModulo, input, divisor), Value::integer(expected));
}

bool divisible_by(const Value& input, const Arguments& arguments) {
  const Parameters parameters("divisibleby", arguments, {"num"}, 1);
  return remainder_is(input, parameters[0], 0);
}

bool same_as(const Value& input, const Arguments& arguments) {
  const Parameters parameters("sameas", arguments, {"other"}, 1);
  return same_object(input, parameters[0]);
}

bool in(const Value& input, const Arguments& arguments) {
  const Parameters parameters("in", arguments, {"seq"}, 1);
  return contains(parameters[0], input);
}

bool is_odd(const Value& v) {
  return remainder_is(v, Value::integer(2), 1);
}
bool is_even(const Value& v) {
  return remainder_is(v, Value::integer(2), 0);
}
bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
void require_hashable(const Value& v) {
  if (!is_hashable(v)) raise(fmt::format("unhashable type: '{}'", type_name(v)));
}
bool is_filter(const Value& v) {
  require_hashable(v);
  return v.is_string() && has_filter(v.text());
}
bool is_test(const Value& v) {
  require_hashable(v);
  return v.is_string() && has_test(v.text());
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_boolean(const Value& v) {
  return v.is(Kind::kBool);
}
bool is_false(const Value& v) {
  return v.is(Kind::kBool) && v.as_integer() == 0;
}
bool is_true(const Value& v) {
  return v.is(Kind::kBool) && v.as_integer() != 0;
}
bool is_integer(const Value& v) {
  return v.is(Kind::kInt) || v.is(Kind::kBigInt);
}
bool is_float(const Value& v) {
  return v.is(Kind::kFloat);
}
bool is_number(const Value& v) {
  return v.is_number() || v.is(Kind::kBigInt);
}
bool is_string(const Value& v) {
  return v.is_string();
}
bool is_mapping(const Value& v) {
  return v.is(Kind::kDict);
}
bool is_sequence(const Value& v) {
  return v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kRange) || v.is_undefined();
}
bool is_escaped(const Value& v) {
  return v.is_markup();
}
bool is_callable(const Value& v) {
  return v.is(Kind::kFunction) || v.is(Kind::kMacro) || v.is(Kind::kLoop) || v.is_undefined();
}

// Text with at least one letter of that case and none of the other.
bool has_only_case(const Value& v, bool upper) {
  const std::string text = to_text(v);
  bool found = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, &i);
    if (is_title(c) || (upper ? jinja::is_lower(c) : jinja::is_upper(c))) return false;
    found |= upper ? jinja::is_upper(c) : jinja::is_lower(c);
  }
  return found;
}
bool is_lower_case(const Value& v) {
  return has_only_case(v, false);
}
bool is_upper_case(const Value& v) {
  return has_only_case(v, true);
}

struct TestRow {
  std::string_view name;
  TestFunction function;
};
constexpr TestRow kTests[] = {
    {"odd", simple<is_odd>},
    {"even", simple<is_even>},
    {"divisibleby", divisible_by},
    {"defined", simple<is_defined>},
    {"undefined", simple<is_undefined>},
    {"filter", simple<is_filter>},
    {"test", simple<is_test>},
    {"none", simple<is_none>},
    {"boolean", simple<is_boolean>},
    {"false", simple<is_false>},
    {"true", simple<is_true>},
    {"integer", simple<is_integer>},
    {"float", simple<is_float>},
    {"lower", simple<is_lower_case>},
    {"upper", simple<is_upper_case>},
    {"string", simple<is_string>},
    {"mapping", simple<is_mapping>},
    {"number", simple<is_number>},
    {"sequence", simple<is_sequence>},
    {"iterable", simple<is_iterable>},
    {"callable", simple<is_callable>},
    {"sameas", same_as},
    {"escaped", simple<is_escaped>},
    {"in", in},
    {"==", comparison<Operator::kEqual>},
    {"eq", comparison<Operator::kEqual>},
    {"equalto", comparison<Operator::kEqual>},
    {"!=", comparison<Operator::kNotEqual>},
    {"ne", comparison<Operator::kNotEqual>},
    {">", comparison<Operator::kGreater>},
    {"gt", comparison<Operator::kGreater>},
    {"greaterthan", comparison<Operator::kGreater>},
    {"ge", comparison<Operator::kGreaterEqual>},
    {">=", comparison<Operator::kGreaterEqual>},
    {"<", comparison<Operator::kLess>},
    {"lt", comparison<Operator::kLess>},
    {"lessthan", comparison<Operator::kLess>},
    {"<=", comparison<Operator::kLessEqual>},
    {"le", comparison<Operator::kLessEqual>},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const TestRow& row : kTests)
    if (row.name == name) return row.function;
  return nullptr;
}

}  // namespace octavo::jinja
