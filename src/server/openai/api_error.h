// Errors as the OpenAI API words them: {"error": {"message", "type", "param", "code"}} and an HTTP status.
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "base/result.h"

namespace octavo {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // empty: null
  std::string code;   // empty: null
  std::string type = "invalid_request_error";
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> refuse(ApiError error) {
  return tl::unexpected<ApiError>(std::move(error));
}

// An engine's or library's error in one line.
ApiError api_error_of(const Error& error, int status);
// 503: what requests are told that a server in its end does not answer.
ApiError shutting_down();
// The JSON body.
std::string error_body(const ApiError& error);

}  // namespace octavo

// OCTAVO_API_TRY, OCTAVO_API_ASSIGN: as OCTAVO_TRY and OCTAVO_ASSIGN, for ApiResult.
#define OCTAVO_API_TRY(expression)                                                         \
  do {                                                                                     \
    auto octavo_try_result = (expression);                                                 \
    if (!octavo_try_result) return ::octavo::refuse(std::move(octavo_try_result).error()); \
  } while (false)
#define OCTAVO_API_ASSIGN_INNER(temporary, declaration, ...)             \
  auto temporary = (__VA_ARGS__);                                        \
  if (!temporary) return ::octavo::refuse(std::move(temporary).error()); \
  declaration = std::move(temporary).value()
#define OCTAVO_API_ASSIGN(declaration, ...) \
  OCTAVO_API_ASSIGN_INNER(OCTAVO_CONCAT(octavo_assign_, __LINE__), declaration, __VA_ARGS__)
