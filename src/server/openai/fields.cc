#include "server/openai/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "server/openai/json_text.h"

namespace octavo {
namespace {

// A value as it may stand in a message.
std::string shown(const Json& json) {
  std::string text = to_text(json);
  if (text.size() > 64) text = std::string(json.type_name()) + " of " + std::to_string(text.size()) + " characters";
  return text;
}

}  // namespace

std::optional<int64_t> whole_number(const Json& json) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  if (json.is_number_unsigned()) {
    const auto value = json.get<uint64_t>();
    return value > static_cast<uint64_t>(kLargest) ? kLargest : static_cast<int64_t>(value);
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  if (!json.is_number_float()) return std::nullopt;
  const auto value = json.get<double>();
  if (!(std::abs(value) <= 0x1p53) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

const Json* Fields::get(std::string_view name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::fail(std::string_view name, std::string message, std::string code) {
  fail(ApiError{.message = std::move(message), .param = path_ + std::string(name), .code = std::move(code)});
}

void Fields::wrong_type(std::string_view name, std::string_view expected, const Json& found) {
  fail(name, fmt::format("'{}{}' must be {}, found {}", path_, name, expected, shown(found)), "invalid_type");
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* json = get(name);
  if (json == nullptr) return std::nullopt;
  if (json->is_boolean()) return json->get<bool>();
  wrong_type(name, "true or false", *json);
  return std::nullopt;
}

std::optional<double> Fields::number(std::string_view name, double low, double high) {
  const Json* json = get(name);
  if (json == nullptr) return std::nullopt;
  if (!json->is_number()) {
    wrong_type(name, "a number", *json);
    return std::nullopt;
  }
  const auto value = json->get<double>();
  if (value >= low && value <= high) return value;  // false for NaN
  fail(name, fmt::format("'{}{}' must be between {} and {}, found {}", path_, name, low, high, shown(*json)),
       "invalid_value");
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const Json* json = get(name);
  if (json == nullptr) return std::nullopt;
  const std::optional<int64_t> value = whole_number(*json);
  if (!value) {
    wrong_type(name, "a whole number", *json);
    return std::nullopt;
  }
  if (*value >= low && *value <= high) return value;
  const std::string range = high == std::numeric_limits<int64_t>::max() ? fmt::format("at least {}", low)
                                                                        : fmt::format("between {} and {}", low, high);
  fail(name, fmt::format("'{}{}' must be {}, found {}", path_, name, range, shown(*json)), "invalid_value");
  return std::nullopt;
}

std::optional<uint64_t> Fields::seed(std::string_view name) {
  const Json* json = get(name);
  if (json == nullptr) return std::nullopt;
  if (json->is_number_unsigned()) return json->get<uint64_t>();
  if (json->is_number_integer() && json->get<int64_t>() >= 0) return static_cast<uint64_t>(json->get<int64_t>());
  fail(name, fmt::format("'{}{}' must be a whole number from 0 to 2^64 - 1, found {}", path_, name, shown(*json)),
       "invalid_value");
  return std::nullopt;
}

std::optional<std::string> Fields::text(std::string_view name) {
  const Json* json = get(name);
  if (json == nullptr) return std::nullopt;
  if (json->is_string()) return json->get<std::string>();
  wrong_type(name, "a string", *json);
  return std::nullopt;
}

const Json* Fields::object(std::string_view name) {
  const Json* json = get(name);
  if (json == nullptr || json->is_object()) return json;
  wrong_type(name, "an object", *json);
  return nullptr;
}

const Json* Fields::array(std::string_view name) {
  const Json* json = get(name);
  if (json == nullptr || json->is_array()) return json;
  wrong_type(name, "an array", *json);
  return nullptr;
}

void Fields::unsupported(std::string_view name, const Json& harmless) {
  const Json* json = get(name);
  if (json == nullptr || *json == harmless) return;
  fail(name, fmt::format("'{}{}' is not supported", path_, name), "unsupported_parameter");
}

}  // namespace octavo
