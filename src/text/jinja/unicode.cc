// UTF-8 text as Python's str sees it, on top of utf8proc.
#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/jinja/special_casing.h"

namespace octavo::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

const SpecialCasing* find_special(char32_t c) {
  const auto* found = std::lower_bound(std::begin(kSpecialCasing), std::end(kSpecialCasing), c,
                                       [](const SpecialCasing& row, char32_t key) { return row.character < key; });
  return found != std::end(kSpecialCasing) && found->character == c ? found : nullptr;
}

void append_upper(std::string* out, char32_t c) {
  if (const SpecialCasing* special = find_special(c)) {
    *out += special->upper;
  } else {
    append_code_point(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string* out, char32_t c) {
  if (const SpecialCasing* special = find_special(c)) {
    *out += special->title;
  } else {
    append_code_point(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

bool is_cased(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT ||
         (c >= 0x2160 && c <= 0x217f) || (c >= 0x24b6 && c <= 0x24e9);
}

bool is_case_ignorable(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' ||
         c == 0xb7 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
}

// A capital sigma is final when a cased letter stands before it and none after it.
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  char32_t before = 0, after = 0;
  while (begin > 0) {
    before = previous_code_point(text, &begin);
    if (!is_case_ignorable(before)) break;
    before = 0;
  }
  if (before == 0 || !is_cased(before)) return false;
  while (end < text.size()) {
    after = next_code_point(text, &end);
    if (!is_case_ignorable(after)) break;
    after = 0;
  }
  return after == 0 || !is_cased(after);
}

void append_lower(std::string* out, std::string_view text, size_t begin, size_t end, char32_t c) {
  if (c < 0x80) {
    out->push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : static_cast<char>(c));
  } else if (c == 0x3a3) {
    append_code_point(out, is_final_sigma(text, begin, end) ? 0x3c2 : 0x3c3);
  } else if (c == 0x130) {
    append_code_point(out, 'i');
    append_code_point(out, 0x307);
  } else {
    append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

char32_t next_code_point(std::string_view text, size_t* position) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const size_t i = *position;
  const char32_t first = byte(i);
  if (first < 0x80) {
    *position = i + 1;
    return first;
  }
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t c = first & (0x7fU >> length);
  for (size_t k = 1; k < length && i + k < text.size(); ++k) c = c << 6 | (byte(i + k) & 0x3f);
  *position = std::min(i + length, text.size());
  return c;
}

char32_t previous_code_point(std::string_view text, size_t* position) {
  size_t begin = *position - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  *position = begin;
  size_t end = begin;
  return next_code_point(text, &end);
}

void append_code_point(std::string* text, char32_t c) {
  if (c < 0x80) {
    text->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    text->push_back(static_cast<char>(0xc0 | c >> 6));
    text->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    text->push_back(static_cast<char>(0xe0 | c >> 12));
    text->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    text->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    text->push_back(static_cast<char>(0xf0 | c >> 18));
    text->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    text->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    text->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t i = 0;
  for (; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && index-- == 0) return i;
  return text.size();
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_alphabetic(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
         (c >= 0x2488 && c <= 0x2490) || (c >= 0x2776 && c <= 0x277e);
}

bool is_numeric(char32_t c) {
  const auto kind = category(c);
  constexpr std::u32string_view kNumberIdeographs = U"〇一七三九二五亿八六兆十千四万百億萬";
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO ||
         kNumberIdeographs.find(c) != std::u32string_view::npos;
}

bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU;
}
bool is_title(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_printable(char32_t c) {
  if (c < 0x7f) return c >= ' ';
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_identifier_start(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return is_alphabetic(c) || category(c) == UTF8PROC_CATEGORY_NL;
}

bool is_identifier_part(char32_t c) {
  if (c < 0x80) return is_identifier_start(c) || (c >= '0' && c <= '9');
  const auto kind = category(c);
  return is_identifier_start(c) || kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_PC;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) append_upper(&out, next_code_point(text, &i));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, &i);
    append_lower(&out, text, begin, i, c);
  }
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, &i);
    if (in_word) {
      append_lower(&out, text, begin, i, c);
    } else {
      append_title(&out, c);
    }
    in_word = is_cased(c);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, &i);
    if (begin == 0) {
      append_title(&out, c);
    } else {
      append_lower(&out, text, begin, i, c);
    }
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, &i);
    if (is_upper(c)) {
      append_lower(&out, text, begin, i, c);
    } else if (is_lower(c)) {
      append_upper(&out, c);
    } else {
      append_code_point(&out, c);
    }
  }
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t folded[4];
    int boundary = 0;
    const char32_t c = next_code_point(text, &i);
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 4, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t k = 0; k < std::min<utf8proc_ssize_t>(count, 4); ++k)
      append_code_point(&out, static_cast<char32_t>(folded[k]));
  }
  return out;
}

}  // namespace octavo::jinja
