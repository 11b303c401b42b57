// Fields: reads the known members of a request object. Missing and null mean "not given"; the first bad one is kept as
// the error that names it. Unknown members are ignored.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/openai/api_error.h"

namespace octavo {

class Fields {
 public:
  // `path`: prefix of the names in errors ("stream_options.").
  explicit Fields(const Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  // The member, or null when it is not given.
  const Json* get(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name);
  // Finite, within [low, high].
  std::optional<double> number(std::string_view name, double low, double high);
  // A whole number (16 or 16.0), within [low, high]; beyond 64 bits it counts as the largest.
  std::optional<int64_t> integer(std::string_view name, int64_t low,
                                 int64_t high = std::numeric_limits<int64_t>::max());
  std::optional<uint64_t> seed(std::string_view name);
  std::optional<std::string> text(std::string_view name);
  const Json* object(std::string_view name);
  const Json* array(std::string_view name);

  // Keeps the first error.
  void fail(std::string_view name, std::string message, std::string code = {});
  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  // Refuses a field that is given with any value but `harmless`: what it asks for is not supported.
  void unsupported(std::string_view name, const Json& harmless);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void wrong_type(std::string_view name, std::string_view expected, const Json& found);

  const Json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

// Whole numbers of JSON: nothing for fractions, other types and floats beyond 2^53.
std::optional<int64_t> whole_number(const Json& json);

}  // namespace octavo
