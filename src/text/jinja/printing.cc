// Python's str() and repr().
#include "text/jinja/printing.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

constexpr int kMaxReprDepth = 2 * kMaxNesting;  // a namespace can contain itself

class ReprWriter {
 public:
  explicit ReprWriter(std::string* out) : out_(out) {}

  void write(const Value& value) {
    spend_steps(1);
    check_text_size(out_->size());
    switch (value.kind()) {
      case Kind::kString:
        *out_ += value.is_markup() ? "Markup(" + repr_of_text(value.text()) + ")" : repr_of_text(value.text());
        return;
      case Kind::kUndefined:
      case Kind::kMissing:
        *out_ += "Undefined";
        return;
      case Kind::kList:
        write_items(value.items(), "[", "]");
        return;
      case Kind::kTuple:
        write_items(value.items(), "(", value.items().size() == 1 ? ",)" : ")");
        return;
      case Kind::kDict:
        write_dict(value.as<DictObject>().dict);
        return;
      case Kind::kDictView:
        *out_ += type_name(value);
        write_items(to_vector(value), "([", "])");
        return;
      case Kind::kNamespace:
        *out_ += "<Namespace ";
        write_dict(value.as<NamespaceObject>().attributes);
        *out_ += ">";
        return;
      default:
        append_text(out_, value);
    }
  }

 private:
  void enter() {
    if (++depth_ > kMaxReprDepth) raise("maximum recursion depth exceeded while getting the repr of an object");
  }

  void write_items(const std::vector<Value>& items, const char* open, const char* close) {
    enter();
    *out_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) *out_ += ", ";
      write(items[i]);
    }
    *out_ += close;
    --depth_;
  }

  void write_dict(const Dict& dict) {
    enter();
    *out_ += "{";
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!first) *out_ += ", ";
      first = false;
      write(key);
      *out_ += ": ";
      write(value);
    }
    *out_ += "}";
    --depth_;
  }

  std::string* out_;
  int depth_ = 0;
};

std::string text_of_range(const RangeObject& range) {
  if (range.step == 1) return fmt::format("range({}, {})", range.start, range.stop);
  return fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
}

}  // namespace

std::string repr_of_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  const size_t e = scientific.find('e');
  int exponent = 0;
  const char* first = scientific.data() + e + 1;
  std::from_chars(first + (*first == '+'), scientific.data() + scientific.size(), exponent);
  std::string sign = scientific[0] == '-' ? "-" : "", digits;
  for (const char c : scientific.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (count > 1) mantissa += "." + digits.substr(1);
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string repr_of_text(std::string_view text) {
  const bool use_double = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, &i);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, i - begin);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string repr(const Value& value) {
  std::string out;
  ReprWriter(&out).write(value);
  return out;
}

void append_text(std::string* out, const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      *out += "None";
      return;
    case Kind::kBool:
      *out += value.as_integer() != 0 ? "True" : "False";
      return;
    case Kind::kInt:
      *out += fmt::format_int(value.as_integer()).str();
      return;
    case Kind::kFloat:
      *out += repr_of_real(value.as_real());
      return;
    case Kind::kString:
    case Kind::kBigInt:
      *out += value.text();
      return;
    case Kind::kRange:
      *out += text_of_range(value.as<RangeObject>());
      return;
    case Kind::kLoop:
      *out += fmt::format("<LoopContext {}/{}>", value.as<LoopObject>().index0() + 1, value.as<LoopObject>().length());
      return;
    case Kind::kMacro:
      *out += value.as<MacroObject>().description();
      return;
    case Kind::kFunction:
      *out += "<built-in function " + value.as<FunctionObject>().name + ">";
      return;
    case Kind::kIterator:
    case Kind::kCycler:
      *out += fmt::format("<{} object>", type_name(value));
      return;
    default:
      ReprWriter(out).write(value);
  }
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.text();
  std::string out;
  append_text(&out, value);
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace octavo::jinja
