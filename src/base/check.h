// OCTAVO_CHECK: a programmer's error, always on; prints the values and aborts.
#pragma once

#include <fmt/format.h>

namespace octavo {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);
}

#define OCTAVO_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::octavo::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
