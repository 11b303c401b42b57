// Typed, range-checked look-ups in a parsed config.json. Include only in .cc files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace octavo {

// parse_json() for config files: small ones only. Json looks keys up one after the other, so that an object of a
// hundred thousand keys would take minutes to build.
Result<Json> parse_config_json(std::string_view text, std::string_view where);

inline constexpr int64_t kMaxSize = INT32_MAX;  // of anything that a config counts

// One JSON object of a config and its name in errors. `null` reads as absent unless said otherwise.
class ConfigKeys {
 public:
  ConfigKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(std::string_view key) const;  // nullptr where absent or null
  bool present(std::string_view key) const;      // also when null
  const std::string& where() const { return where_; }

  // Empty where absent or null; an error where the value has another type or lies outside of [low, high].
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<std::optional<double>> number(std::string_view key, double low, double high) const;
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> text(std::string_view key) const;
  // One id or a list of them; -1 (some configs' "none") is left out.
  Result<std::vector<int64_t>> token_ids(std::string_view key) const;

  Error bad(std::string_view key, std::string expected) const;

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace octavo
