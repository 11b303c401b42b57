// UTF-8 and the few Unicode properties that tokenizers ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {

// One step through bytes that claim to be UTF-8. `size` bytes form the code point, or (valid == false) the maximal
// invalid part in the sense of the Unicode standard, which a reader replaces by one U+FFFD. `truncated`: the text ends
// inside a sequence that was valid so far.
struct Utf8Step {
  uint32_t code_point = 0xFFFD;
  int size = 1;
  bool valid = false;
  bool truncated = false;
};
Utf8Step utf8_step(std::string_view text, size_t position);

// The code point that starts at `position` of valid UTF-8, and the one that ends at `position` (> 0).
uint32_t code_point_at(std::string_view text, size_t position, int* size);
uint32_t code_point_before(std::string_view text, size_t position, int* size);

void append_utf8(uint32_t code_point, std::string& out);
bool is_valid_utf8(std::string_view text);
// Every maximal invalid part becomes one U+FFFD, as Python's bytes.decode("utf-8", "replace") has it.
std::string replace_invalid_utf8(std::string_view text);

bool is_white_space(uint32_t code_point);  // property White_Space
bool is_numeric(uint32_t code_point);      // categories Nd, Nl, No
bool is_word(uint32_t code_point);         // what \w means: letters, marks, digits, connectors

// Canonical composition by the tables of Unicode 9, those of the tokenizers that models are trained with: younger code
// points neither move nor combine. `text` is valid UTF-8. Linear but for a sort of each run of combining marks.
std::string to_nfc(std::string_view text);

// A copy of `text` (valid UTF-8, equal length) in which code points that are younger than Unicode 14 give way to older
// ones of the same category, so that a regex library with older tables splits the text as a newer one would. False
// (and `out` untouched) if there is none.
bool with_older_stand_ins(std::string_view text, std::string& out);

}  // namespace octavo
