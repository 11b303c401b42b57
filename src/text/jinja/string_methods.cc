// Python's str methods that cut, search and join.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/formatting.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/string_tools.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

Value like(const Value& self, std::string text) {
  return Value::string(std::move(text), self.is_markup());
}

Value texts(const Value& self, std::vector<std::string> parts) {
  std::vector<Value> values;
  values.reserve(parts.size());
  for (std::string& part : parts) values.push_back(like(self, std::move(part)));
  spend_steps(values.size());
  return Value::list(std::move(values));
}

template <bool from_right>
Value split_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("split", arguments, {"sep", "maxsplit"});
  const std::string separator = parameters.given(0) ? parameters.string(0, "") : "";
  return texts(self,
               split(self.text(), parameters.given(0) ? &separator : nullptr, parameters.integer(1, -1), from_right));
}

Value split_lines_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("splitlines", arguments, {"keepends"});
  return texts(self, split_lines(self.text(), parameters.boolean(0, false)));
}

template <bool left, bool right>
Value strip_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("strip", arguments, {""});
  if (parameters.given(0) && !parameters[0].is_string()) raise("strip arg must be None or str");
  return like(self, strip(self.text(), parameters.given(0) ? parameters.get(0) : nullptr, left, right));
}

// [begin, end) in bytes, from Python's optional start and end arguments; false when start lies behind the end.
bool bytes_between(const Value& self, const Parameters& parameters, size_t first, size_t* begin, size_t* end) {
  const auto size = static_cast<int64_t>(self.text_length());
  const auto bound = [&](size_t index, int64_t otherwise) {
    if (!parameters.given(index)) return otherwise;
    const int64_t at = parameters.integer(index, 0);
    return std::max<int64_t>(at < 0 ? at + size : at, 0);
  };
  const int64_t from = bound(first, 0), to = std::min(bound(first + 1, size), size);
  if (from > size || from > to) return false;
  spend_steps(self.text().size() / 64);
  *begin = byte_offset(self.text(), static_cast<size_t>(from));
  *end = byte_offset(self.text(), static_cast<size_t>(to));
  return true;
}

template <bool at_start>
Value affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const char* name = at_start ? "startswith" : "endswith";
  const Parameters parameters(name, arguments, {"", "", ""}, 1);
  const std::vector<Value> choices =
      parameters[0].is(Kind::kTuple) ? parameters[0].items() : std::vector<Value>{parameters[0]};
  size_t begin = 0, end = 0;
  const bool in_range = bytes_between(self, parameters, 1, &begin, &end);
  for (const Value& choice : choices) {
    if (!choice.is_string())
      raise(fmt::format("{} first arg must be str or a tuple of str, not {}", name, type_name(choice)));
    if (!in_range) continue;
    const std::string_view text = std::string_view(self.text()).substr(begin, end - begin);
    if (at_start ? text.starts_with(choice.text()) : text.ends_with(choice.text())) return Value::boolean(true);
  }
  return Value::boolean(false);
}

size_t find_last(std::string_view text, std::string_view part) {
  const std::string mirrored(text.rbegin(), text.rend()), pattern(part.rbegin(), part.rend());
  const size_t found = find_part(mirrored, pattern, 0);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

template <bool from_right, bool must_find>
Value find_method_of_text(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("find", arguments, {"", "", ""}, 1);
  const std::string part = parameters.string(0, "");
  size_t begin = 0, end = 0;
  if (bytes_between(self, parameters, 1, &begin, &end)) {
    spend_steps(self.text().size() / 16 + 1);
    const std::string_view text = std::string_view(self.text()).substr(begin, end - begin);
    const size_t found = from_right ? find_last(text, part) : find_part(text, part, 0);
    if (found != std::string_view::npos)
      return Value::integer(
          static_cast<int64_t>(count_code_points(std::string_view(self.text()).substr(0, begin + found))));
  }
  if (must_find) raise("substring not found");
  return Value::integer(-1);
}

Value count(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"", "", ""}, 1);
  const std::string part = parameters.string(0, "");
  size_t begin = 0, end = 0;
  if (!bytes_between(self, parameters, 1, &begin, &end)) return Value::integer(0);
  const std::string_view text = std::string_view(self.text()).substr(begin, end - begin);
  if (part.empty()) return Value::integer(static_cast<int64_t>(count_code_points(text)) + 1);
  spend_steps(text.size() / 16 + 1);
  int64_t total = 0;
  for (size_t i = find_part(text, part, 0); i != std::string_view::npos; i = find_part(text, part, i + part.size()))
    ++total;
  return Value::integer(total);
}

Value replace_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"", "", ""}, 2);
  const auto part = [&](size_t i) {
    const std::string text = parameters.string(i, "");
    return self.is_markup() && !parameters[i].is_markup() ? escape_html(text) : text;
  };
  return like(self, replace_text(self.text(), part(0), part(1), parameters.integer(2, -1)));
}

Value join_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {""}, 1);
  if (!is_iterable(parameters[0])) raise("can only join an iterable");
  std::string out;
  size_t index = 0;
  const auto items = iterate(parameters[0]);
  for (Value item; items->next(&item); ++index) {
    spend_steps(1);
    if (!item.is_string() && !self.is_markup())
      raise(fmt::format("sequence item {}: expected str instance, {} found", index, type_name(item)));
    if (index > 0) out += self.text();
    out += self.is_markup() && !item.is_markup() ? escape_html(to_text(item)) : to_text(item);
    check_text_size(out.size());
  }
  return like(self, std::move(out));
}

template <bool from_right>
Value partition(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("partition", arguments, {""}, 1);
  const std::string part = parameters.string(0, "");
  if (part.empty()) raise("empty separator");
  const std::string& text = self.text();
  spend_steps(text.size() / 16 + 1);
  const size_t found = from_right ? find_last(text, part) : find_part(text, part, 0);
  const Value empty = like(self, "");
  if (found == std::string::npos)
    return from_right ? Value::tuple({empty, empty, self}) : Value::tuple({self, empty, empty});
  return Value::tuple(
      {like(self, text.substr(0, found)), like(self, part), like(self, text.substr(found + part.size()))});
}

template <bool prefix>
Value remove_affix(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(prefix ? "removeprefix" : "removesuffix", arguments, {""}, 1);
  const std::string part = parameters.string(0, "");
  std::string text = self.text();
  if (prefix && text.starts_with(part)) text.erase(0, part.size());
  if (!prefix && text.ends_with(part)) text.resize(text.size() - part.size());
  return like(self, std::move(text));
}

Value format_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return format_braces(interpreter, self, arguments);
}

Value format_map(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("format_map", arguments, {""}, 1);
  if (!parameters[0].is(Kind::kDict)) raise("format_map() needs a mapping");
  Arguments named;
  for (const auto& [key, value] : parameters[0].as<DictObject>().dict.entries())
    if (key.is_string()) named.keywords.emplace_back(key.text(), value);
  spend_steps(named.keywords.size());
  return format_braces(interpreter, self, named);
}

constexpr Builtin kStringMethods[] = {
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", split_lines_method},
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"startswith", affix_method<true>},
    {"endswith", affix_method<false>},
    {"find", find_method_of_text<false, false>},
    {"rfind", find_method_of_text<true, false>},
    {"index", find_method_of_text<false, true>},
    {"rindex", find_method_of_text<true, true>},
    {"count", count},
    {"replace", replace_method},
    {"join", join_method},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"format", format_method},
    {"format_map", format_map},
};

}  // namespace

std::span<const Builtin> string_methods() {
  return kStringMethods;
}

}  // namespace octavo::jinja
