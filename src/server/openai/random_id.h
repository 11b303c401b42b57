// Names of things that a reply makes.
#pragma once

#include <string>
#include <string_view>

namespace octavo {

// `prefix` and 24 random hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace octavo
