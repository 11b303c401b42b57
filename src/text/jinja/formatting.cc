// What both ways of formatting share: digits and padding.
#include "text/jinja/formatting.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "text/jinja/unicode.h"

namespace octavo::jinja {

std::string format_real(double magnitude, const FormatSpec& spec) {
  const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  if (std::isnan(magnitude)) return upper ? "NAN" : "nan";
  if (std::isinf(magnitude)) return upper ? "INF" : "inf";
  if (spec.precision > 1000) raise("precision too big");
  const char format[] = {'%',
                         spec.alternate ? '#' : '.',
                         spec.alternate ? '.' : '*',
                         spec.alternate ? '*' : spec.type,
                         spec.alternate ? spec.type : '\0',
                         '\0'};
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  char buffer[1500];
  const int length = std::snprintf(buffer, sizeof buffer, format, precision, magnitude);
  return std::string(buffer, static_cast<size_t>(length));
}

std::string format_magnitude(uint64_t magnitude, char type) {
  switch (type) {
    case 'b':
      return fmt::format("{:b}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string pad(std::string_view sign, std::string_view digits, const FormatSpec& spec) {
  const auto width = static_cast<size_t>(std::max<int64_t>(spec.width, 0));
  const size_t length = count_code_points(sign) + count_code_points(digits);
  check_text_size(digits.size() + sign.size());
  if (width <= length) return std::string(sign) + std::string(digits);
  const size_t missing = width - length;
  check_text_size(missing, spec.fill.size());
  const auto filling = [&spec](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += spec.fill;
    return text;
  };
  std::string out;
  switch (spec.align) {
    case '<':
      return out.append(sign).append(digits).append(filling(missing));
    case '^':
      return out.append(filling(missing / 2)).append(sign).append(digits).append(filling(missing - missing / 2));
    case '=':
      return out.append(sign).append(filling(missing)).append(digits);
    default:
      return out.append(filling(missing)).append(sign).append(digits);
  }
}

}  // namespace octavo::jinja
