// Filters about numbers and defaults: int, float, abs, round, default, sum, min, max.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/string_tools.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

// Digits with single underscores between them, as Python's int() and float() take them.
bool drop_underscores(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      *out += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0 &&
                         std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0;
    if (!between) return false;
  }
  return true;
}

// Python's float(text).
bool parse_real(std::string_view source, double* value) {
  std::string text;
  if (!drop_underscores(strip(source, nullptr, true, true), &text)) return false;
  std::string_view rest = text;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  const std::string name = to_lower(rest);
  if (name == "inf" || name == "infinity") {
    *value = std::numeric_limits<double>::infinity();
  } else if (name == "nan") {
    *value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (rest.empty() || !(std::isdigit(static_cast<unsigned char>(rest[0])) != 0 || rest[0] == '.')) return false;
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), *value);
    if (end.ptr != rest.data() + rest.size()) return false;
    if (end.ec == std::errc::result_out_of_range) *value = std::strtod(std::string(rest).c_str(), nullptr);
  }
  if (negative) *value = -*value;
  return true;
}

// Python's int(text, base).
bool parse_integer(std::string_view source, int64_t base, int64_t* value) {
  std::string text = strip(source, nullptr, true, true);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  int64_t digits_base = base;
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      digits_base = marked;
      text.erase(0, text[2] == '_' ? 3 : 2);
    }
  }
  if (digits_base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string::npos) return false;
    digits_base = 10;
  }
  if (digits_base < 2 || digits_base > 36) return false;
  std::string digits;
  if (!drop_underscores(text, &digits) || digits.empty() || digits[0] == '-' || digits[0] == '+') return false;
  if (negative) digits.insert(0, "-");
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), *value, static_cast<int>(digits_base));
  if (end.ec == std::errc::result_out_of_range && end.ptr == digits.data() + digits.size())
    raise("integers beyond 64 bits are not supported");
  return end.ec == std::errc() && end.ptr == digits.data() + digits.size();
}

Value truncated(double value) {
  if (std::isinf(value)) raise("cannot convert float infinity to integer");
  if (std::abs(value) >= 9.2233720368547758e18) raise("integers beyond 64 bits are not supported");
  return Value::integer(static_cast<int64_t>(value));
}

Value to_integer(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"});
  const Value otherwise = parameters.has(0) ? parameters[0] : Value::integer(0);
  require_defined(self);
  if (self.is(Kind::kBigInt)) return self;
  if (self.is_integer()) return Value::integer(self.as_integer());
  double real = 0;
  if (self.is(Kind::kFloat)) {
    real = self.as_real();
  } else if (self.is_string()) {
    int64_t value = 0;
    if (parse_integer(self.text(), parameters.integer(1, 10), &value)) return Value::integer(value);
    if (!parse_real(self.text(), &real) || std::isinf(real)) return otherwise;
  } else {
    return otherwise;
  }
  return std::isnan(real) ? otherwise : truncated(real);
}

Value to_real(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"});
  require_defined(self);
  double value = 0;
  if (self.is_number()) return Value::real(self.as_real());
  if (self.is_string() && parse_real(self.text(), &value)) return Value::real(value);
  return parameters.has(0) ? parameters[0] : Value::real(0);
}

Value absolute(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("abs", arguments, {});
  if (self.is(Kind::kFloat)) return Value::real(std::abs(self.as_real()));
  if (self.is(Kind::kBigInt)) return self;
  if (!self.is_integer()) {
    require_defined(self);
    raise(fmt::format("bad operand type for abs(): '{}'", type_name(self)));
  }
  return self.as_integer() < 0 ? unary(Operator::kNegate, self) : Value::integer(self.as_integer());
}

// round(value, digits): exact halves of the decimal expansion go to the even digit.
double round_real(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 320) return value;
  if (digits < -320) return std::copysign(0.0, value);
  if (digits >= 0) return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  const long double unit = std::pow(10.0L, static_cast<long double>(-digits));
  return static_cast<double>(std::nearbyint(static_cast<long double>(value) / unit) * unit);
}

int64_t round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < -digits; ++i) unit *= 10;
  int64_t quotient = value / unit;
  const int64_t rest = value % unit, twice = std::abs(rest) > unit / 2 ? 1 : std::abs(rest) * 2 == unit ? 0 : -1;
  if (twice > 0 || (twice == 0 && quotient % 2 != 0)) quotient += value < 0 ? -1 : 1;
  if (__builtin_mul_overflow(quotient, unit, &quotient)) raise("integers beyond 64 bits are not supported");
  return quotient;
}

Value round_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"});
  const int64_t digits = parameters.integer(0, 0);
  const std::string method = parameters.string(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") raise("method must be common, ceil or floor");
  require_defined(self);
  if (!self.is_number()) raise(fmt::format("type {} doesn't define __round__ method", type_name(self)));
  if (method == "common")
    return self.is_integer() ? Value::integer(round_integer(self.as_integer(), digits))
                             : Value::real(round_real(self.as_real(), digits));
  const double unit = std::pow(10.0, static_cast<double>(digits)), scaled = self.as_real() * unit;
  if (!std::isfinite(scaled)) raise("cannot convert float infinity or NaN to integer");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value default_value(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"});
  if (!self.is_undefined() && !(parameters.boolean(1, false) && !truthy(self))) return self;
  return parameters.has(0) ? parameters[0] : Value::string("");
}

Value sum(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"});
  const AttributePath path(parameters.get(0));
  Value total = parameters.has(1) ? parameters[1] : Value::integer(0);
  if (total.is_string()) raise("sum() can't sum strings [use ''.join(seq) instead]");
  const auto items = iterate(self);
  for (Value item; items->next(&item);) {
    spend_steps(1);
    total = binary(Operator::kAdd, total, path.of(interpreter, item));
  }
  return total;
}

Value extreme(Interpreter& interpreter, const Value& self, const Arguments& arguments, const char* name, Operator op) {
  const Parameters parameters(name, arguments, {"case_sensitive", "attribute"});
  const AttributePath path(parameters.get(1));
  const bool case_sensitive = parameters.boolean(0, false);
  const auto key_of = [&](const Value& item) {
    Value key = path.of(interpreter, item);
    return key.is_string() && !case_sensitive ? Value::string(to_lower(key.text())) : key;
  };
  const auto items = iterate(self);
  Value best, best_key;
  for (Value item; items->next(&item);) {
    spend_steps(1);
    Value key = key_of(item);
    if (!best.is_missing() && !compare(op, key, best_key)) continue;
    best = item;
    best_key = std::move(key);
  }
  return best.is_missing() ? Value::undefined("No aggregated item, sequence was empty.") : best;
}

Value minimum(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return extreme(interpreter, self, arguments, "min", Operator::kLess);
}
Value maximum(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return extreme(interpreter, self, arguments, "max", Operator::kGreater);
}

constexpr Builtin kNumberFilters[] = {
    {"int", to_integer},  {"float", to_real}, {"abs", absolute}, {"round", round_filter}, {"default", default_value},
    {"d", default_value}, {"sum", sum},       {"min", minimum},  {"max", maximum},
};

}  // namespace

std::span<const Builtin> number_filters() {
  return kNumberFilters;
}

}  // namespace octavo::jinja
