// Escapes in string literals, as Python's "unicode-escape" codec reads them.
#pragma once

#include <string>
#include <string_view>

namespace octavo::jinja {

// `body` is what stands between the quotes, `position` where it stands in the template. Throws Failure.
std::string decode_string_literal(std::string_view body, size_t position);

}  // namespace octavo::jinja
