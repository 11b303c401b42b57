// Python's json.dumps, byte for byte.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(std::string* out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value, size_t level) {
    spend_steps(1);
    check_text_size(out_->size());
    switch (value.kind()) {
      case Kind::kNone:
        *out_ += "null";
        return;
      case Kind::kBool:
        *out_ += value.as_integer() != 0 ? "true" : "false";
        return;
      case Kind::kInt:
      case Kind::kBigInt:
        append_text(out_, value);
        return;
      case Kind::kFloat:
        *out_ += number(value.as_real());
        return;
      case Kind::kString:
        write_text(value.text());
        return;
      case Kind::kList:
      case Kind::kTuple:
        write_list(value.items(), level);
        return;
      case Kind::kDict:
        write_dict(value.as<DictObject>().dict, level);
        return;
      default:
        raise(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_of_real(value);
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.as_integer() != 0 ? "true" : "false";
      case Kind::kFloat:
        return number(key.as_real());
      case Kind::kString:
      case Kind::kInt:
      case Kind::kBigInt:
        return to_text(key);
      default:
        raise(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void new_line(size_t level) {
    if (!style_.multiline) return;
    check_text_size(level, style_.indent.size());
    *out_ += '\n';
    for (size_t i = 0; i < level; ++i) *out_ += style_.indent;
    check_text_size(out_->size());
  }

  void write_list(const std::vector<Value>& items, size_t level) {
    if (items.empty()) {
      *out_ += "[]";
      return;
    }
    *out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) *out_ += style_.item_separator;
      new_line(level + 1);
      write(items[i], level + 1);
    }
    new_line(level);
    *out_ += ']';
  }

  void write_dict(const Dict& dict, size_t level) {
    if (dict.size() == 0) {
      *out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return compare(Operator::kLess, a->first, b->first); });
    *out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) *out_ += style_.item_separator;
      new_line(level + 1);
      write_text(key_text(entries[i]->first));
      *out_ += style_.key_separator;
      write(entries[i]->second, level + 1);
    }
    new_line(level);
    *out_ += '}';
  }

  void write_text(std::string_view text) {
    spend_steps(text.size() / 64);
    *out_ += '"';
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const char32_t c = next_code_point(text, &i);
      if (const char* short_form = escape_of(c)) {
        *out_ += short_form;
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f)) {
        write_escape(c);
      } else {
        *out_ += text.substr(begin, i - begin);
      }
    }
    *out_ += '"';
  }

  static const char* escape_of(char32_t c) {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        return nullptr;
    }
  }

  void write_escape(char32_t c) {
    const auto unit = [this](uint32_t code) { *out_ += fmt::format("\\u{:04x}", code); };
    if (c < 0x10000) return unit(static_cast<uint32_t>(c));
    const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
    unit(0xd800 | rest >> 10);
    unit(0xdc00 | (rest & 0x3ff));
  }

  std::string* out_;
  const JsonStyle& style_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(&out, style).write(value, 0);
  return out;
}

}  // namespace octavo::jinja
