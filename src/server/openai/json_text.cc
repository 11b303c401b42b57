#include "server/openai/json_text.h"

#include <fmt/format.h>

#include <charconv>

#include "server/openai/api_error.h"

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

ApiError api_error_of(const Error& error, int status) {
  std::string message = error.what;
  if (!error.found.empty()) message += fmt::format("; found: {}", error.found);
  if (!error.expected.empty()) message += fmt::format("; expected: {}", error.expected);
  if (!error.remedy.empty()) message += fmt::format(". {}", error.remedy);
  ApiError out{.status = status, .message = std::move(message)};
  if (status >= 500) out.type = "server_error";
  return out;
}

ApiError shutting_down() {
  return {.status = 503, .message = "The server is shutting down", .code = "not_ready", .type = "server_error"};
}

std::string error_body(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json inner = {
      {"message", error.message}, {"type", error.type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}};
  return to_text(Json{{"error", std::move(inner)}});
}

}  // namespace octavo
