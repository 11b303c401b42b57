// Filters whose input is text: upper, trim, indent, replace, tojson, ...
#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/formatting.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/string_tools.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

void no_arguments(std::string_view name, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {});
}

Value upper(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("upper", arguments);
  return Value::string(to_upper(to_text(self)), self.is_markup());
}

Value lower(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("lower", arguments);
  return Value::string(to_lower(to_text(self)), self.is_markup());
}

Value capitalize_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("capitalize", arguments);
  return Value::string(capitalize(to_text(self)), self.is_markup());
}

// Unlike str.title: only what follows spaces and opening brackets starts a word.
Value title(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("title", arguments);
  const std::string text = to_text(self);
  std::string out;
  const auto is_break = [](char32_t c) {
    return c == '-' || is_space(c) || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const bool breaks = is_break(next_code_point(text, &i));
    const size_t after_first = i;
    while (i < text.size()) {
      size_t next = i;
      if (is_break(next_code_point(text, &next)) != breaks) break;
      i = next;
    }
    out += to_upper(std::string_view(text).substr(begin, after_first - begin));
    out += to_lower(std::string_view(text).substr(after_first, i - after_first));
  }
  return Value::string(std::move(out));
}

Value trim(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("trim", arguments, {"chars"});
  if (parameters.given(0)) parameters.string(0, "");
  return Value::string(strip(to_text(self), parameters.given(0) ? parameters.get(0) : nullptr, true, true),
                       self.is_markup());
}

Value replace(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  const int64_t count = parameters.given(2) ? parameters.integer(2, -1) : -1;
  return Value::string(replace_text(to_text(self), to_text(parameters[0]), to_text(parameters[1]), count));
}

Value string(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("string", arguments);
  return self.is_string() ? self : Value::string(to_text(self));
}

Value safe(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("safe", arguments);
  return Value::string(to_text(self), true);
}

Value escape(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("escape", arguments);
  return self.is_markup() ? self : Value::string(escape_html(to_text(self)), true);
}

Value force_escape(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("forceescape", arguments);
  return Value::string(escape_html(to_text(self)), true);
}

Value indent(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"});
  require_defined(self);
  if (!self.is_string()) raise(fmt::format("indent() needs text, not {}", type_name(self)));
  std::string indentation;
  if (parameters.has(0) && parameters[0].is_string()) {
    indentation = parameters[0].text();
  } else {
    const int64_t width = parameters.integer(0, 4);
    check_text_size(static_cast<size_t>(std::max<int64_t>(width, 0)));
    indentation.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool blank = parameters.boolean(2, false);
  std::string out = parameters.boolean(1, false) ? indentation : "";
  const std::vector<std::string> lines = split_lines(self.text() + "\n", false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += indentation;
    out += lines[i];
    check_text_size(out.size());
  }
  return Value::string(std::move(out), self.is_markup());
}

Value truncate(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const int64_t length = parameters.integer(0, 255), leeway = parameters.given(3) ? parameters.integer(3, 5) : 5;
  const std::string end = parameters.string(2, "...");
  const auto end_length = static_cast<int64_t>(count_code_points(end));
  if (length < end_length) raise(fmt::format("expected length >= {}, got {}", end_length, length));
  if (leeway < 0) raise(fmt::format("expected leeway >= 0, got {}", leeway));
  if (static_cast<int64_t>(length_of(self)) - leeway <= length) return self;
  if (!self.is_string()) raise(fmt::format("truncate() needs text, not {}", type_name(self)));
  std::string text = self.text().substr(0, byte_offset(self.text(), static_cast<size_t>(length - end_length)));
  if (!parameters.boolean(1, false)) text = text.substr(0, text.rfind(' '));
  return Value::string(text + end, self.is_markup());
}

Value center(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"});
  return Value::string(center_text(to_text(self), parameters.integer(0, 80), " "), self.is_markup());
}

Value word_count(Interpreter&, const Value& self, const Arguments& arguments) {
  no_arguments("wordcount", arguments);
  const std::string text = to_text(self);
  int64_t words = 0;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, &i);
    const bool is_word = c == '_' || is_alphanumeric(c);
    words += is_word && !in_word;
    in_word = is_word;
  }
  return Value::integer(words);
}

Value format(Interpreter&, const Value& self, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keywords.empty())
    raise("can't handle positional and keyword arguments at the same time");
  const Value text = self.is_string() ? self : Value::string(to_text(self));
  if (arguments.keywords.empty()) return format_percent(text, Value::tuple(arguments.positional));
  Dict values;
  for (const auto& [name, value] : arguments.keywords) values.set(Value::string(name), value);
  return format_percent(text, make_dict(std::move(values)));
}

Value to_json_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = parameters.boolean(0, false);
  style.sort_keys = parameters.boolean(3, false);
  if (parameters.given(1)) {
    style.multiline = true;
    style.item_separator = ",";
    if (parameters[1].is_string()) {
      style.indent = parameters[1].text();
    } else {
      const auto width = static_cast<size_t>(std::max<int64_t>(parameters.integer(1, 0), 0));
      check_text_size(width);
      style.indent.assign(width, ' ');
    }
  }
  if (parameters.given(2)) {
    const std::vector<Value> separators = to_vector(parameters[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      raise("tojson(): separators must be two strings");
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return Value::string(to_json(self, style));
}

constexpr Builtin kTextFilters[] = {
    {"upper", upper},
    {"lower", lower},
    {"capitalize", capitalize_filter},
    {"title", title},
    {"trim", trim},
    {"replace", replace},
    {"string", string},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"forceescape", force_escape},
    {"indent", indent},
    {"truncate", truncate},
    {"center", center},
    {"wordcount", word_count},
    {"format", format},
    {"tojson", to_json_filter},
};

}  // namespace

std::span<const Builtin> text_filters() {
  return kTextFilters;
}

}  // namespace octavo::jinja
