// + - * / // % ** and the signs, as Python has them for numbers, text and sequences.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "text/jinja/formatting.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace octavo::jinja {
namespace {

[[noreturn]] void raise_unsupported(Operator op, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b})
    if (side->is(Kind::kBigInt)) raise("arithmetic on an integer beyond 64 bits is not supported");
  if (op == Operator::kAdd && a.is_string())
    raise(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
  if (op == Operator::kAdd && a.is_sequence())
    raise(fmt::format("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b)));
  const char* name = op == Operator::kPower ? "** or pow()" : spelling(op);
  if (op == Operator::kMultiply && (a.is_string() || a.is_sequence() || b.is_string() || b.is_sequence())) {
    const Value& other = a.is_string() || a.is_sequence() ? b : a;
    raise(fmt::format("can't multiply sequence by non-int of type '{}'", type_name(other)));
  }
  raise(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", name, type_name(a), type_name(b)));
}

[[noreturn]] void raise_overflow() {
  raise("the result is an integer beyond 64 bits, which is not supported");
}

Value concatenate_text(const Value& a, const Value& b) {
  check_text_size(a.text().size() + b.text().size());
  spend_steps((a.text().size() + b.text().size()) / 64);
  if (a.is_markup() == b.is_markup()) return Value::string(a.text() + b.text(), a.is_markup());
  return Value::string(a.is_markup() ? a.text() + escape_html(b.text()) : escape_html(a.text()) + b.text(), true);
}

Value concatenate_sequences(const Value& a, const Value& b) {
  const size_t size = a.items().size() + b.items().size();
  spend_steps(size);
  const Charge charge(size * sizeof(Value));
  std::vector<Value> items;
  items.reserve(size);
  items.insert(items.end(), a.items().begin(), a.items().end());
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value repeat(const Value& value, int64_t times) {
  const size_t count = times > 0 ? static_cast<size_t>(times) : 0;
  if (value.is_string()) {
    check_text_size(count, value.text().size());
    if (value.text().empty()) return value;
    const size_t size = count * value.text().size();
    spend_steps(size / 64);
    std::string text;
    text.reserve(size);
    if (size > 0) text = value.text();
    while (text.size() < size) text.append(text, 0, size - text.size());  // doubles what is there
    return Value::string(std::move(text), value.is_markup());
  }
  const auto& source = value.items();
  std::vector<Value> items;
  if (!source.empty()) {
    check_text_size(count, source.size());
    spend_steps(count * source.size());
    const Charge charge(count * source.size() * sizeof(Value));
    items.reserve(count * source.size());
    for (size_t i = 0; i < count; ++i) items.insert(items.end(), source.begin(), source.end());
  }
  return value.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) raise("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i)  // at most 63 rounds before the overflow
    if (__builtin_mul_overflow(result, base, &result)) raise_overflow();
  return Value::integer(result);
}

Value integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) raise_overflow();
      return Value::integer(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) raise_overflow();
      return Value::integer(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) raise_overflow();
      return Value::integer(result);
    case Operator::kDivide:
      if (b == 0) raise("division by zero");
      return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case Operator::kFloorDivide:
      if (b == 0) raise("integer division or modulo by zero");
      if (b == -1 && a == std::numeric_limits<int64_t>::min()) raise_overflow();
      return Value::integer(a / b - ((a % b != 0) && ((a < 0) != (b < 0))));
    case Operator::kModulo: {
      if (b == 0) raise("integer modulo by zero");
      if (b == -1) return Value::integer(0);
      const int64_t rest = a % b;
      return Value::integer(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
    default:
      return integer_power(a, b);
  }
}

Value real_power(double a, double b) {
  if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) raise("complex numbers are not supported");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) raise("(34, 'Numerical result out of range')");
  return Value::real(result);
}

Value real_arithmetic(Operator op, double a, double b) {
  const auto modulo = [](double x, double y) {
    double rest = std::fmod(x, y);
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    return rest == 0 ? std::copysign(0.0, y) : rest;
  };
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kDivide:
      if (b == 0) raise("float division by zero");
      return Value::real(a / b);
    case Operator::kFloorDivide: {
      if (b == 0) raise("float floor division by zero");
      const double quotient = (a - modulo(a, b)) / b;
      if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
      return Value::real(quotient - std::floor(quotient) > 0.5 ? std::floor(quotient) + 1 : std::floor(quotient));
    }
    case Operator::kModulo:
      if (b == 0) raise("float modulo");
      return Value::real(modulo(a, b));
    default:
      return real_power(a, b);
  }
}

}  // namespace

Value binary(Operator op, const Value& a, const Value& b) {
  if (a.is_string() && op == Operator::kModulo) return format_percent(a, b);
  require_defined(a);
  require_defined(b);
  if (a.is_integer() && b.is_integer()) return integer_arithmetic(op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return real_arithmetic(op, a.as_real(), b.as_real());
  if (op == Operator::kAdd) {
    if (a.is_string() && b.is_string()) return concatenate_text(a, b);
    if (a.is_sequence() && a.kind() == b.kind()) return concatenate_sequences(a, b);
  } else if (op == Operator::kMultiply) {
    if ((a.is_string() || a.is_sequence()) && b.is_integer()) return repeat(a, b.as_integer());
    if (a.is_integer() && (b.is_string() || b.is_sequence())) return repeat(b, a.as_integer());
  }
  raise_unsupported(op, a, b);
}

Value unary(Operator op, const Value& a) {
  if (op == Operator::kNot) return Value::boolean(!truthy(a));
  require_defined(a);
  if (a.is(Kind::kFloat)) return Value::real(op == Operator::kNegate ? -a.as_real() : a.as_real());
  if (a.is(Kind::kBigInt)) raise("arithmetic on an integer beyond 64 bits is not supported");
  if (!a.is_integer()) raise(fmt::format("bad operand type for unary {}: '{}'", spelling(op), type_name(a)));
  if (op == Operator::kPlus) return Value::integer(a.as_integer());
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t{0}, a.as_integer(), &result)) raise_overflow();
  return Value::integer(result);
}

}  // namespace octavo::jinja
