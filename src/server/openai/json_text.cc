#include "server/openai/json_text.h"

#include <charconv>

namespace octavo {

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_string(std::string_view text) {
  return to_text(Json(text));
}

double json_logprob(float logprob) {
  if (!(logprob > -9999.0f)) return -9999.0;
  if (logprob > 0) return 0.0;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), logprob).ptr;
  double value = 0;
  std::from_chars(digits, end, value);
  return value;
}

}  // namespace octavo
