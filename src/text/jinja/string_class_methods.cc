// Python's str methods about letters: case, classes of characters, padding.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/formatting.h"
#include "text/jinja/operators.h"
#include "text/jinja/string_tools.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

using Mapping = std::string (*)(std::string_view);
template <Mapping mapping>
Value map_case(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("method", arguments, {});
  spend_steps(self.text().size() / 16);
  return Value::string(mapping(self.text()), self.is_markup());
}

using Class = bool (*)(char32_t);
// At least one character, and all of the class.
template <Class is_member>
Value all_of_class(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("method", arguments, {});
  const std::string& text = self.text();
  spend_steps(text.size() / 16);
  for (size_t i = 0; i < text.size();)
    if (!is_member(next_code_point(text, &i))) return Value::boolean(false);
  return Value::boolean(!text.empty());
}

bool is_ascii(char32_t c) {
  return c < 0x80;
}

Value is_ascii_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return self.text().empty() ? Value::boolean(true) : all_of_class<is_ascii>(interpreter, self, arguments);
}

Value is_printable_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return self.text().empty() ? Value::boolean(true) : all_of_class<is_printable>(interpreter, self, arguments);
}

Value is_lower_method(Interpreter&, const Value& self, const Arguments& arguments) {
  return Value::boolean(find_test("lower")(self, arguments));
}
Value is_upper_method(Interpreter&, const Value& self, const Arguments& arguments) {
  return Value::boolean(find_test("upper")(self, arguments));
}

// Capitals only behind what has no case, small letters only behind what has.
Value is_title_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("istitle", arguments, {});
  const std::string& text = self.text();
  bool in_word = false, found = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, &i);
    const bool capital = is_upper(c) || is_title(c);
    if (capital ? in_word : is_lower(c) && !in_word) return Value::boolean(false);
    in_word = capital || is_lower(c);
    found |= in_word;
  }
  return Value::boolean(found);
}

Value is_identifier_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("isidentifier", arguments, {});
  const std::string& text = self.text();
  bool valid = !text.empty();
  for (size_t i = 0; i < text.size() && valid;) {
    const bool first = i == 0;
    const char32_t c = next_code_point(text, &i);
    valid = first ? is_identifier_start(c) : is_identifier_part(c);
  }
  return Value::boolean(valid);
}

std::string fill_of(const Parameters& parameters) {
  std::string fill = parameters.string(1, " ");
  if (count_code_points(fill) != 1) raise("The fill character must be exactly one character long");
  return fill;
}

Value center(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"", ""}, 1);
  return Value::string(center_text(self.text(), parameters.integer(0, 0), fill_of(parameters)), self.is_markup());
}

template <char align>
Value justify(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("ljust", arguments, {"", ""}, 1);
  FormatSpec spec;
  spec.align = align;
  spec.fill = fill_of(parameters);
  spec.width = parameters.integer(0, 0);
  return Value::string(pad("", self.text(), spec), self.is_markup());
}

Value zero_fill(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("zfill", arguments, {""}, 1);
  const std::string& text = self.text();
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  FormatSpec spec;
  spec.align = '=';
  spec.fill = "0";
  spec.width = parameters.integer(0, 0);
  const std::string_view view = text;
  return Value::string(pad(view.substr(0, has_sign), view.substr(has_sign), spec), self.is_markup());
}

Value expand_tabs(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("expandtabs", arguments, {"tabsize"});
  const int64_t size = parameters.integer(0, 8);
  std::string out;
  int64_t column = 0;
  const std::string& text = self.text();
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, &i);
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      check_text_size(out.size() + static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
      continue;
    }
    out.append(text, begin, i - begin);
    column = c == '\n' || c == '\r' ? 0 : column + 1;
  }
  return Value::string(std::move(out), self.is_markup());
}

// Exists in Python, and could only be used from a template that does something else than chat.
Value unsupported(Interpreter&, const Value&, const Arguments&) {
  raise("the methods encode, translate and maketrans of strings are not supported");
}

constexpr Builtin kStringClassMethods[] = {
    {"upper", map_case<to_upper>},
    {"lower", map_case<to_lower>},
    {"title", map_case<to_title>},
    {"capitalize", map_case<capitalize>},
    {"swapcase", map_case<swap_case>},
    {"casefold", map_case<casefold>},
    {"isalpha", all_of_class<is_alphabetic>},
    {"isdigit", all_of_class<is_digit>},
    {"isdecimal", all_of_class<is_decimal>},
    {"isnumeric", all_of_class<is_numeric>},
    {"isalnum", all_of_class<is_alphanumeric>},
    {"isspace", all_of_class<is_space>},
    {"isascii", is_ascii_method},
    {"isprintable", is_printable_method},
    {"islower", is_lower_method},
    {"isupper", is_upper_method},
    {"istitle", is_title_method},
    {"isidentifier", is_identifier_method},
    {"center", center},
    {"ljust", justify<'<'>},
    {"rjust", justify<'>'>},
    {"zfill", zero_fill},
    {"expandtabs", expand_tabs},
    {"encode", unsupported},
    {"translate", unsupported},
    {"maketrans", unsupported},
};

}  // namespace

std::span<const Builtin> string_class_methods() {
  return kStringClassMethods;
}

}  // namespace octavo::jinja
