// Cutting and joining text as Python's str methods do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace octavo::jinja {

// Without the characters of `characters` (null: white space) at the chosen ends.
std::string strip(std::string_view text, const Value* characters, bool left, bool right);
// The first `count` occurrences (negative: all).
std::string replace_text(std::string_view text, std::string_view old_part, std::string_view new_part, int64_t count);
// At most `limit` cuts (negative: no limit), from the left or from the right. Without a separator: runs of white space.
std::vector<std::string> split(std::string_view text, const std::string* separator, int64_t limit, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string center_text(std::string_view text, int64_t width, std::string_view fill);
// Position of the first `part` at or after byte `from`; npos when there is none. Linear in the worst case.
size_t find_part(std::string_view text, std::string_view part, size_t from);

}  // namespace octavo::jinja
