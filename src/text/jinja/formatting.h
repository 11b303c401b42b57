// Python's two ways of formatting text: "..." % values and "...".format(values).
#pragma once

#include <string>

#include "text/jinja/value.h"

namespace octavo::jinja {

// format % values: `values` is a tuple, a dictionary, or the only value.
Value format_percent(const Value& format, const Value& values);
// format.format(*positional, **keywords).
Value format_braces(Interpreter& interpreter, const Value& format, const Arguments& arguments);

// What a conversion like "%-08.3f" or "{:>8}" asks for, once parsed.
struct FormatSpec {
  std::string fill = " ";  // one character
  char align = '\0';       // < > ^ =, or none
  char sign = '\0';        // + or space
  bool alternate = false;  // #
  bool grouping = false;   // ,
  int64_t width = 0, precision = -1;
  char type = '\0';
};
// Digits of a real number in the manner of type f, F, e, E, g, G; sign not included.
std::string format_real(double magnitude, const FormatSpec& spec);
// The digits of an integer's magnitude in base 2, 8, 10 or 16, by type b, o, d, x, X.
std::string format_magnitude(uint64_t magnitude, char type);
// Puts `sign` and `digits` into the width; `align` must be set.
std::string pad(std::string_view sign, std::string_view digits, const FormatSpec& spec);

}  // namespace octavo::jinja
