#include "evaluate/tasks/fields.h"

#include <fmt/format.h>

namespace octavo {
namespace {

tl::unexpected<Error> wrong(const std::string& where, std::string_view key, const Json& line, std::string expected) {
  const auto found = line.find(key);
  return fail({.what = fmt::format("field \"{}\" is {}", key, found == line.end() ? "missing" : "of the wrong kind"),
               .where = where,
               .found = found == line.end() ? "" : found->type_name(),
               .expected = std::move(expected)});
}

}  // namespace

bool has_field(const Json& line, std::string_view key) {
  return line.find(key) != line.end();
}

Result<std::string> text_field(const Json& line, std::string_view key, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_string()) return wrong(where, key, line, "a text");
  return found->get<std::string>();
}

Result<std::vector<std::string>> texts_field(const Json& line, std::string_view key, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_array() || found->empty()) return wrong(where, key, line, "a list of texts");
  std::vector<std::string> texts;
  for (const Json& entry : *found) {
    if (!entry.is_string()) return wrong(where, key, line, "a list of texts");
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

Result<int64_t> index_field(const Json& line, std::string_view key, size_t count, const std::string& where) {
  const auto found = line.find(key);
  const std::string expected = fmt::format("a number from 0 to {}", static_cast<int64_t>(count) - 1);
  if (found == line.end() || !found->is_number_integer()) return wrong(where, key, line, expected);
  const auto value = found->get<int64_t>();
  if (value < 0 || value >= static_cast<int64_t>(count))
    return fail({.what = fmt::format("field \"{}\" is out of range", key),
                 .where = where,
                 .found = fmt::format("{}", value),
                 .expected = expected});
  return value;
}

std::string id_field(const Json& line, std::string_view key) {
  const auto found = line.find(key);
  if (found == line.end()) return {};
  return found->is_string() ? found->get<std::string>() : found->is_number() ? found->dump() : std::string();
}

Result<std::string> fill_template(std::string_view text, const Json& line, const std::string& where) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = text.find('}', i);
    if (end == std::string_view::npos)
      return fail({.what = "a template has a { without its }", .where = where, .found = std::string(text)});
    const std::string_view key = text.substr(i + 1, end - i - 1);
    const auto found = line.find(key);
    if (found == line.end() || !(found->is_string() || found->is_number()))
      return wrong(where, key, line, "a text or a number, for the template");
    out += found->is_string() ? found->get<std::string>() : found->dump();
    i = end;
  }
  return out;
}

}  // namespace octavo
