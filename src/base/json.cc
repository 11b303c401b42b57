#include "base/json.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

namespace octavo {

Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  if (text.size() > limits.max_bytes)
    return fail({.what = "JSON text is too large",
                 .where = std::string(where),
                 .found = fmt::format("{} bytes", text.size()),
                 .expected = fmt::format("at most {} bytes", limits.max_bytes)});
  // Depth is checked before the parser sees the text: nlohmann's values are destroyed and copied by recursion.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limits.max_depth)
        return fail({.what = "JSON is nested too deeply",
                     .where = fmt::format("{}, byte {}", where, i),
                     .expected = fmt::format("at most {} levels", limits.max_depth)});
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  std::vector<std::unordered_set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && duplicate.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.empty() && !keys.back().insert(key).second) duplicate = key;
    }
    return true;
  };
  try {
    Json value = Json::parse(text, watch);
    if (!duplicate.empty())
      return fail({.what = "JSON object has the same key twice", .where = std::string(where), .found = duplicate});
    return value;
  } catch (const Json::exception& error) {
    return fail({.what = "not valid JSON", .where = std::string(where), .found = error.what()});
  }
}

}  // namespace octavo
