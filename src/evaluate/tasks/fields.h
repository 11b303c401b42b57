// Fields of a data line, with errors that name line and field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace octavo {

Result<std::string> text_field(const Json& line, std::string_view key, const std::string& where);
Result<std::vector<std::string>> texts_field(const Json& line, std::string_view key, const std::string& where);
// A number from 0 to below `count`.
Result<int64_t> index_field(const Json& line, std::string_view key, size_t count, const std::string& where);
bool has_field(const Json& line, std::string_view key);
// "id" of the line (text or number), or nothing.
std::string id_field(const Json& line, std::string_view key = "id");

// `text` with every {field} replaced by the line's text or number of that name; {{ and }} are braces.
Result<std::string> fill_template(std::string_view text, const Json& line, const std::string& where);

}  // namespace octavo
