// UTF-8 text as Python's str sees it: counted, indexed, classified and case-mapped by code point.
// All functions expect valid UTF-8: text is checked once, where it enters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octavo::jinja {

size_t count_code_points(std::string_view text);
// The code point at byte `*position`, which moves behind it.
char32_t next_code_point(std::string_view text, size_t* position);
// The code point that ends before byte `*position`, which moves to its first byte.
char32_t previous_code_point(std::string_view text, size_t* position);
void append_code_point(std::string* text, char32_t character);
// Byte offset of code point `index`; text.size() when there are fewer.
size_t byte_offset(std::string_view text, size_t index);

// The character classes of Python's str methods.
bool is_space(char32_t c);
bool is_alphabetic(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);
bool is_printable(char32_t c);
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);
inline bool is_alphanumeric(char32_t c) {
  return is_alphabetic(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);    // str.title: a capital after every character that is not a letter
std::string capitalize(std::string_view text);  // first character in title case, the others lower
std::string swap_case(std::string_view text);
std::string casefold(std::string_view text);

}  // namespace octavo::jinja
