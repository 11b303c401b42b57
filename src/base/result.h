// Errors from the outside world (files, flags, requests): values, never exceptions.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace octavo {

// What a person needs in order to mend it. `what` is always set, the rest where it is known.
struct Error {
  std::string what;      // "tensor has the wrong shape"
  std::string where;     // file, tensor, line, flag
  std::string found;     // what was there
  std::string expected;  // what should have been there
  std::string remedy;    // what to do about it

  // One line per part, ready to print.
  std::string message() const;
  // All parts on one line, for tables and reports.
  std::string line() const;
};

template <class T>
using Result = tl::expected<T, Error>;

// `return fail({.what = "...", .where = "..."});` in a function that returns a Result.
inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace octavo

#define OCTAVO_CONCAT_INNER(a, b) a##b
#define OCTAVO_CONCAT(a, b) OCTAVO_CONCAT_INNER(a, b)

// OCTAVO_TRY(expr): leaves the function with expr's error, if it has one.
#define OCTAVO_TRY(expression)                                                           \
  do {                                                                                   \
    auto octavo_try_result = (expression);                                               \
    if (!octavo_try_result) return ::octavo::fail(std::move(octavo_try_result).error()); \
  } while (false)

// OCTAVO_ASSIGN(auto x, expr): x = the value of expr, or leaves the function with its error.
#define OCTAVO_ASSIGN_INNER(temporary, declaration, expression)        \
  auto temporary = (expression);                                       \
  if (!temporary) return ::octavo::fail(std::move(temporary).error()); \
  declaration = std::move(temporary).value()
#define OCTAVO_ASSIGN(declaration, ...) \
  OCTAVO_ASSIGN_INNER(OCTAVO_CONCAT(octavo_assign_, __LINE__), declaration, (__VA_ARGS__))
