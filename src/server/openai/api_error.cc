#include "server/openai/api_error.h"

#include <fmt/format.h>

#include "server/openai/json_text.h"

namespace octavo {

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
