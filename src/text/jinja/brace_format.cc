// "...".format(...), with Python's format specifications for text, integers and reals.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "text/jinja/formatting.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t i = 0;
  const auto at = [&](size_t k) { return k < text.size() ? text[k] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t after_fill = 0;
  if (!text.empty()) next_code_point(text, &after_fill);
  if (after_fill > 0 && is_align(at(after_fill))) {
    spec.fill = std::string(text.substr(0, after_fill));
    spec.align = at(after_fill);
    i = after_fill + 1;
  } else if (is_align(at(0))) {
    spec.align = at(i++);
  }
  if (at(i) == '+' || at(i) == '-' || at(i) == ' ') {
    if (at(i) != '-') spec.sign = at(i);
    ++i;
  }
  if (at(i) == '#') {
    spec.alternate = true;
    ++i;
  }
  if (at(i) == '0') {
    if (spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
    ++i;
  }
  const auto number = [&](int64_t* value) {
    const auto end = std::from_chars(text.data() + i, text.data() + text.size(), *value);
    if (end.ec == std::errc::result_out_of_range || *value > INT32_MAX)
      raise("Too many decimal digits in format string");
    const size_t used = static_cast<size_t>(end.ptr - text.data()) - i;
    i += used;
    return used > 0;
  };
  if (at(i) >= '0' && at(i) <= '9') number(&spec.width);
  if (at(i) == ',') {
    spec.grouping = true;
    ++i;
  }
  if (at(i) == '.') {
    ++i;
    if (!(at(i) >= '0' && at(i) <= '9') || !number(&spec.precision)) raise("Format specifier missing precision");
  }
  if (i < text.size()) spec.type = text[i++];
  if (i < text.size()) raise("Invalid format specifier");
  return spec;
}

std::string with_commas(const std::string& digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out + digits.substr(whole);
}

[[noreturn]] void raise_unknown_type(const FormatSpec& spec, const Value& value) {
  raise(fmt::format("Unknown format code '{}' for object of type '{}'", spec.type, type_name(value)));
}

std::string format_text(const Value& value, FormatSpec spec) {
  if (spec.type != '\0' && spec.type != 's') raise_unknown_type(spec, value);
  if (spec.align == '=') raise("'=' alignment not allowed in string format specifier");
  if (spec.sign != '\0') raise("Sign not allowed in string format specifier");
  std::string text = value.text();
  if (spec.precision >= 0) text.resize(byte_offset(text, static_cast<size_t>(spec.precision)));
  if (spec.align == '\0') spec.align = '<';
  return pad("", text, spec);
}

std::string format_number(const Value& value, FormatSpec spec) {
  if (spec.align == '\0') spec.align = '>';
  const bool is_real = value.is(Kind::kFloat);
  const std::string_view real_types = "fFeEgG%", integer_types = "bdoxXc";
  const bool as_real = is_real || (spec.type != '\0' && real_types.find(spec.type) != std::string_view::npos);
  const bool negative = is_real ? std::signbit(value.as_real()) : value.as_integer() < 0;
  std::string sign = negative ? "-" : spec.sign == '\0' ? "" : std::string(1, spec.sign);
  std::string digits;
  if (as_real) {
    if (spec.type != '\0' && real_types.find(spec.type) == std::string_view::npos) raise_unknown_type(spec, value);
    double magnitude = std::abs(value.as_real());
    FormatSpec form = spec;
    if (spec.type == '%') {
      magnitude *= 100;
      form.type = 'f';
    } else if (spec.type == '\0' && spec.precision >= 0) {
      form.type = 'g';
      if (form.precision == 0) form.precision = 1;
    }
    digits = form.type == '\0' ? repr_of_real(magnitude) : format_real(magnitude, form);
    if (spec.type == '\0' && spec.precision >= 0 && std::isfinite(magnitude) &&
        digits.find_first_of(".e") == std::string::npos)
      digits += ".0";
    if (spec.type == '%') digits += '%';
  } else {
    if (spec.precision >= 0) raise("Precision not allowed in integer format specifier");
    if (spec.type != '\0' && integer_types.find(spec.type) == std::string_view::npos) raise_unknown_type(spec, value);
    if (spec.type == 'c') raise("the format code 'c' is not supported");
    const auto magnitude =
        negative ? uint64_t{0} - static_cast<uint64_t>(value.as_integer()) : static_cast<uint64_t>(value.as_integer());
    digits = format_magnitude(magnitude, spec.type);
    if (spec.alternate && spec.type != '\0' && spec.type != 'd') sign += std::string("0") + spec.type;
  }
  if (spec.grouping) digits = with_commas(digits);
  return pad(sign, digits, spec);
}

std::string format_value(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  const FormatSpec spec = parse_spec(text);
  if (value.is_string()) return format_text(value, spec);
  if (value.is_number()) return format_number(value, spec);
  raise(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Arguments& arguments, bool escapes)
      : interpreter_(interpreter), arguments_(arguments), escapes_(escapes) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 2) raise("Max string recursion exceeded");
    std::string out;
    for (size_t i = 0; i < format.size();) {
      spend_steps(1);
      check_text_size(out.size());
      const char c = format[i];
      if (c != '{' && c != '}') {
        const size_t next = std::min(format.find_first_of("{}", i), format.size());
        out += format.substr(i, next - i);
        i = next;
      } else if (i + 1 < format.size() && format[i + 1] == c) {
        out += c;
        i += 2;
      } else if (c == '}') {
        raise("Single '}' encountered in format string");
      } else {
        i = field(format, i + 1, depth, &out);
      }
    }
    return out;
  }

 private:
  // One replacement field, from behind its "{" to behind its "}".
  size_t field(std::string_view format, size_t begin, int depth, std::string* out) {
    int open = 1;
    size_t end = begin;
    for (; end < format.size(); ++end) {
      open += format[end] == '{' ? 1 : format[end] == '}' ? -1 : 0;
      if (open == 0) break;
    }
    if (open > 0)
      raise(begin >= format.size() ? "Single '{' encountered in format string" : "expected '}' before end of string");
    const std::string_view body = format.substr(begin, end - begin);
    size_t name_end = 0;
    for (int brackets = 0; name_end < body.size(); ++name_end) {
      const char c = body[name_end];
      brackets += c == '[' ? 1 : c == ']' ? -1 : 0;
      if (brackets <= 0 && (c == '!' || c == ':')) break;
    }
    Value value = look_up(body.substr(0, name_end));
    std::string_view rest = body.substr(name_end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) raise("expected ':' after conversion specifier");
      if (rest[1] == 'r' || rest[1] == 'a') {
        value = Value::string(repr(value));
      } else if (rest[1] == 's') {
        value = Value::string(to_text(value));
      } else {
        raise(fmt::format("Unknown conversion specifier {}", rest[1]));
      }
      rest.remove_prefix(2);
    }
    std::string spec;
    if (rest.starts_with(':')) spec = run(rest.substr(1), depth + 1);
    std::string text = format_value(value, spec);
    *out += escapes_ && !value.is_markup() ? escape_html(text) : text;
    return end + 1;
  }

  Value look_up(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = first_value(name.substr(0, first_end));
    size_t i = first_end;
    while (i < name.size()) {
      if (name[i] == '.') {
        const size_t end = std::min(name.find_first_of(".[", i + 1), name.size());
        if (end == i + 1) raise("Empty attribute in format string");
        value = interpreter_.attribute(value, name.substr(i + 1, end - i - 1));
        i = end;
        continue;
      }
      const size_t end = name.find(']', i);
      if (name[i] != '[' || end == std::string_view::npos) raise("Missing ']' in format string");
      const std::string_view key = name.substr(i + 1, end - i - 1);
      int64_t index = 0;
      const bool is_number = !key.empty() && key.find_first_not_of("0123456789") == std::string_view::npos &&
                             std::from_chars(key.data(), key.data() + key.size(), index).ec == std::errc();
      value = interpreter_.item(value, is_number ? Value::integer(index) : Value::string(std::string(key)));
      i = end + 1;
    }
    return value;
  }

  Value first_value(std::string_view name) {
    size_t index = 0;
    if (name.empty()) {
      if (manual_) raise("cannot switch from manual field specification to automatic field numbering");
      index = automatic_++;
    } else if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      if (automatic_ > 0) raise("cannot switch from manual field specification to automatic field numbering");
      manual_ = true;
      if (std::from_chars(name.data(), name.data() + name.size(), index).ec != std::errc())
        raise("Too many decimal digits in format string");
    } else {
      const Value* found = arguments_.keyword(name);
      if (found == nullptr) raise(repr_of_text(name));
      return *found;
    }
    if (index >= arguments_.positional.size())
      raise(fmt::format("Replacement index {} out of range for positional args tuple", index));
    return arguments_.positional[index];
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  bool escapes_;
  size_t automatic_ = 0;
  bool manual_ = false;
};

}  // namespace

Value format_braces(Interpreter& interpreter, const Value& format, const Arguments& arguments) {
  return Value::string(BraceFormatter(interpreter, arguments, format.is_markup()).run(format.text(), 0),
                       format.is_markup());
}

}  // namespace octavo::jinja
