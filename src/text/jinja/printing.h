// Values as text: Python's str() and repr(), HTML escaping, and json.dumps.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace octavo::jinja {

std::string to_text(const Value& value);  // str(value)
void append_text(std::string* out, const Value& value);
std::string repr(const Value& value);
std::string repr_of_text(std::string_view text);
std::string repr_of_real(double value);
std::string escape_html(std::string_view text);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multiline = false;  // with `indent` in front of every level
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
// json.dumps(value); throws for what JSON cannot say.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace octavo::jinja
