// "..." % values, as Python's str does it.
#include <fmt/format.h>

#include <cmath>

#include "text/jinja/formatting.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& values)
      : format_(format.text()), escapes_(format.is_markup()), values_(values) {}

  std::string run() {
    while (i_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', i_), format_.size());
      out_.append(format_, i_, percent - i_);
      i_ = percent;
      if (i_ < format_.size()) conversion();
      spend_steps(1);
      check_text_size(out_.size());
    }
    const bool is_mapping = !values_.is(Kind::kTuple) && !values_.is_string() && has_items();
    if (!is_mapping && used_ < count()) raise("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  bool has_items() const {
    return values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kRange) || values_.is_undefined();
  }
  size_t count() const { return values_.is(Kind::kTuple) ? values_.items().size() : 1; }

  Value next_value() {
    if (used_ >= count()) raise("not enough arguments for format string");
    return values_.is(Kind::kTuple) ? values_.items()[used_++] : (++used_, values_);
  }

  char current() const {
    if (i_ >= format_.size()) raise("incomplete format");
    return format_[i_];
  }

  Value named_value() {
    int depth = 1;
    const size_t begin = ++i_;
    for (; depth > 0; ++i_) {
      if (i_ >= format_.size()) raise("incomplete format key");
      depth += format_[i_] == '(' ? 1 : format_[i_] == ')' ? -1 : 0;
    }
    if (!values_.is(Kind::kDict)) raise("format requires a mapping");
    const std::string key = format_.substr(begin, i_ - 1 - begin);
    const Value* found = values_.as<DictObject>().dict.find(key);
    if (found == nullptr) raise(repr_of_text(key));
    used_ = count();
    return *found;
  }

  int64_t number() {
    if (current() == '*') {
      ++i_;
      const Value value = next_value();
      if (!value.is_integer()) raise("* wants int");
      return value.as_integer();
    }
    int64_t value = 0;
    for (; current() >= '0' && current() <= '9'; ++i_) {
      value = value * 10 + (current() - '0');
      if (value > INT32_MAX) raise("width too big");
    }
    return value;
  }

  void conversion() {
    ++i_;
    Value named;
    if (current() == '(') named = named_value();
    FormatSpec spec;
    spec.align = '>';
    bool zero = false;
    for (;; ++i_) {
      const char c = current();
      if (c == '-') {
        spec.align = '<';
      } else if (c == '+' || (c == ' ' && spec.sign == '\0')) {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        zero = true;
      } else if (c != ' ') {
        break;
      }
    }
    spec.width = number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = spec.width < -INT32_MAX ? INT32_MAX : -spec.width;
    }
    if (current() == '.') {
      ++i_;
      spec.precision = std::max<int64_t>(number(), 0);
    }
    if (current() == 'h' || current() == 'l' || current() == 'L') ++i_;
    spec.type = current();
    ++i_;
    if (spec.type == '%') {
      out_ += '%';
      return;
    }
    write(named.is_missing() ? next_value() : named, spec, zero);
  }

  void write(const Value& value, FormatSpec spec, bool zero) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text = spec.type == 's' ? to_text(value) : repr(value);
        if (escapes_ && !value.is_markup()) text = escape_html(text);
        if (spec.precision >= 0) text.resize(byte_offset(text, static_cast<size_t>(spec.precision)));
        out_ += pad("", text, spec);
        return;
      }
      case 'c':
        return write_character(value, spec);
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return write_integer(value, spec, zero);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
        return write_real(value, spec, zero);
      default:
        raise(
            fmt::format("unsupported format character '{}' ({:#x})", spec.type, static_cast<unsigned char>(spec.type)));
    }
  }

  void write_character(const Value& value, const FormatSpec& spec) {
    std::string text;
    if (value.is_string() && value.text_length() == 1) {
      text = value.text();
    } else if (value.is_integer() && value.as_integer() >= 0 && value.as_integer() < 0x110000 &&
               (value.as_integer() < 0xd800 || value.as_integer() > 0xdfff)) {
      append_code_point(&text, static_cast<char32_t>(value.as_integer()));
    } else {
      raise("%c requires int or char");
    }
    out_ += pad("", text, spec);
  }

  static std::string sign_of(bool negative, const FormatSpec& spec) {
    if (negative) return "-";
    return spec.sign == '\0' ? "" : std::string(1, spec.sign);
  }

  void write_integer(const Value& value, FormatSpec spec, bool zero) {
    require_defined(value);
    int64_t integer = value.as_integer();
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (value.is(Kind::kFloat) && decimal) {
      if (!(std::abs(value.as_real()) < 9.2e18)) raise("cannot convert float to a 64-bit integer");
      integer = static_cast<int64_t>(value.as_real());
    } else if (!value.is_integer()) {
      raise(fmt::format("%{} format: {} is required, not {}", spec.type, decimal ? "a real number" : "an integer",
                        type_name(value)));
    }
    const uint64_t magnitude =
        integer < 0 ? uint64_t{0} - static_cast<uint64_t>(integer) : static_cast<uint64_t>(integer);
    std::string digits = format_magnitude(magnitude, decimal ? 'd' : spec.type);
    check_text_size(static_cast<size_t>(std::max<int64_t>(spec.precision, 0)));
    if (static_cast<int64_t>(digits.size()) < spec.precision)
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    std::string sign = sign_of(integer < 0, spec);
    if (spec.alternate && !decimal) sign += std::string("0") + spec.type;
    emit_number(sign, digits, spec, zero);
  }

  void write_real(const Value& value, const FormatSpec& spec, bool zero) {
    require_defined(value);
    if (!value.is_number()) raise(fmt::format("must be real number, not {}", type_name(value)));
    const double real = value.as_real();
    emit_number(sign_of(std::signbit(real) && !std::isnan(real), spec), format_real(std::abs(real), spec), spec, zero);
  }

  void emit_number(const std::string& sign, const std::string& digits, FormatSpec spec, bool zero) {
    if (zero && spec.align != '<') {
      spec.fill = "0";
      spec.align = '=';
    }
    out_ += pad(sign, digits, spec);
  }

  const std::string& format_;
  bool escapes_;
  const Value& values_;
  size_t i_ = 0, used_ = 0;
  std::string out_;
};

}  // namespace

Value format_percent(const Value& format, const Value& values) {
  return Value::string(PercentFormatter(format, values).run(), format.is_markup());
}

}  // namespace octavo::jinja
