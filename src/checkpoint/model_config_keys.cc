#include "checkpoint/model_config_keys.h"

#include <fmt/format.h>

#include <cmath>

namespace octavo {
namespace {

constexpr size_t kMaxConfigBytes = size_t{32} << 20, kMaxConfigKeys = 10000;

// Members of all objects together: each has one ':' outside of strings.
size_t count_keys(std::string_view text) {
  size_t keys = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text[i] == ':') {
      ++keys;
    }
  }
  return keys;
}

// An integer, also where it is written as 4096.0.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::fabs(number) < 9.0e15 && number == std::floor(number)) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

}  // namespace

Result<Json> parse_config_json(std::string_view text, std::string_view where) {
  if (const size_t keys = count_keys(text); keys > kMaxConfigKeys)
    return fail({.what = "config has too many keys",
                 .where = std::string(where),
                 .found = fmt::format("{}", keys),
                 .expected = fmt::format("at most {}", kMaxConfigKeys)});
  return parse_json(text, where, {.max_depth = 32, .max_bytes = kMaxConfigBytes});
}

const Json* ConfigKeys::find(std::string_view key) const {
  const auto at = object_.find(std::string(key));
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool ConfigKeys::present(std::string_view key) const {
  return object_.contains(std::string(key));
}

Error ConfigKeys::bad(std::string_view key, std::string expected) const {
  const Json* value = find(key);
  std::string found = value == nullptr ? "null" : value->dump(-1, ' ', true);
  if (found.size() > 100) found = found.substr(0, 100) + "...";
  return {.what = fmt::format("bad value of '{}'", key),
          .where = where_,
          .found = std::move(found),
          .expected = std::move(expected)};
}

Result<std::optional<int64_t>> ConfigKeys::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number || *number < low || *number > high)
    return fail(bad(key, fmt::format("an integer from {} to {}", low, high)));
  return number;
}

Result<std::optional<double>> ConfigKeys::number(std::string_view key, double low, double high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high)) return fail(bad(key, fmt::format("a number from {} to {}", low, high)));
  return number;
}

Result<std::optional<bool>> ConfigKeys::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return fail(bad(key, "true or false"));
  return value->get<bool>();
}

Result<std::optional<std::string>> ConfigKeys::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return fail(bad(key, "a string"));
  return value->get<std::string>();
}

Result<std::vector<int64_t>> ConfigKeys::token_ids(std::string_view key) const {
  std::vector<int64_t> ids;
  const Json* value = find(key);
  if (value == nullptr) return ids;
  const auto add = [&](const Json& item) {
    const auto id = as_integer(item);
    if (!id || *id < -1 || *id > INT32_MAX) return false;
    if (*id >= 0) ids.push_back(*id);
    return true;
  };
  bool good = !value->is_object();
  if (value->is_array()) {
    for (const Json& item : *value) good = good && add(item);
  } else if (good) {
    good = add(*value);
  }
  if (!good) return fail(bad(key, "a token id, or a list of them"));
  return ids;
}

}  // namespace octavo
