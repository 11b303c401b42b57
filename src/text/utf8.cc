#include "text/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace octavo {
namespace {

// Code points that Unicode 15 to 17 added, by category; N# is a number for Digits only (the tables that regular
// expressions are measured by lack it). Sorted; made by tools/make_unicode_additions.py.
struct Addition {
  uint32_t first, last;
  char category[3];
};
constexpr Addition kAdditions[] = {
#include "text/unicode_additions.inc"
};

// What Unicode 10 to 14 added to canonical ordering and composition.
constexpr uint32_t kYoungMarks[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
};

const Addition* find_addition(uint32_t c) {
  if (c < kAdditions[0].first) return nullptr;
  const auto* row = std::upper_bound(std::begin(kAdditions), std::end(kAdditions), c,
                                     [](uint32_t value, const Addition& a) { return value < a.first; });
  --row;
  return c <= row->last ? row : nullptr;
}

// An old code point of the same category and the same number of bytes.
uint32_t stand_in(const Addition& addition, uint32_t c) {
  const bool three_bytes = c < 0x10000;
  const char major = addition.category[0], minor = addition.category[1];
  if (major == 'L') {
    if (c >= 0x20000) return 0x20000;  // stays Han
    if (minor == 'u') return three_bytes ? 0xA722 : 0x10400;
    if (minor == 'l') return three_bytes ? 0xA723 : 0x10428;
    if (minor == 'm') return three_bytes ? 0xA717 : 0x10780;
    return three_bytes ? 0xA000 : 0x10000;
  }
  if (major == 'M') return three_bytes ? 0x0900 : 0x1D167;
  if (major == 'N') return minor == 'd' ? (three_bytes ? 0xA620 : 0x1D7CE) : (three_bytes ? 0x2CFD : 0x1D2E0);
  if (major == 'P') return three_bytes ? 0x1B5A : 0x10100;
  return three_bytes ? 0x2400 : 0x1F300;
}

int sequence_size(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

std::string_view category_of(uint32_t c) {
  if (const Addition* addition = find_addition(c)) return addition->category;
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}

bool is_young(uint32_t c) {
  const auto* row = std::upper_bound(std::begin(kYoungMarks), std::end(kYoungMarks), c,
                                     [](uint32_t value, const uint32_t(&range)[2]) { return value < range[0]; });
  return (row != std::begin(kYoungMarks) && c <= (*(row - 1))[1]) || find_addition(c) != nullptr;
}

// Puts each run of combining marks into canonical order.
void sort_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t i = 0; i < code_points.size();) {
    if (combining_class(code_points[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < code_points.size() && combining_class(code_points[end]) != 0) ++end;
    std::stable_sort(code_points.begin() + static_cast<std::ptrdiff_t>(i),
                     code_points.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

void append_decomposed(uint32_t c, std::vector<utf8proc_int32_t>& code_points) {
  utf8proc_int32_t parts[32];  // the longest canonical decomposition has 4
  int last_boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, kCompose, &last_boundary);
  OCTAVO_CHECK(count >= 0 && count <= 32, "decomposition of U+{:X}: {}", c, count);
  code_points.insert(code_points.end(), parts, parts + count);
}

// Appends the composition of `code_points` (decomposed) and clears them.
void append_composed(std::vector<utf8proc_int32_t>& code_points, std::string& out) {
  sort_marks(code_points);
  const auto size = static_cast<utf8proc_ssize_t>(code_points.size());
  const auto length = utf8proc_normalize_utf32(code_points.data(), size, kCompose);
  OCTAVO_CHECK(length >= 0, "composition failed: {}", length);
  for (utf8proc_ssize_t i = 0; i < length; ++i)
    append_utf8(static_cast<uint32_t>(code_points[static_cast<size_t>(i)]), out);
  code_points.clear();
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(position);
  if (lead < 0x80) return {.code_point = lead, .size = 1, .valid = true};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const int need = sequence_size(lead);
  uint32_t code_point = lead & (0xFFu >> (need + 1));
  for (int i = 1; i < need; ++i) {
    if (position + static_cast<size_t>(i) >= text.size()) return {.size = i, .truncated = true};
    const uint8_t next = byte(position + static_cast<size_t>(i));
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;   // overlong
    if (i == 1 && lead == 0xED) high = 0x9F;  // surrogates
    if (i == 1 && lead == 0xF0) low = 0x90;   // overlong
    if (i == 1 && lead == 0xF4) high = 0x8F;  // above U+10FFFF
    if (next < low || next > high) return {.size = i};
    code_point = code_point << 6 | (next & 0x3F);
  }
  return {.code_point = code_point, .size = need, .valid = true};
}

uint32_t code_point_at(std::string_view text, size_t position, int* size) {
  const Utf8Step step = utf8_step(text, position);
  *size = step.size;
  return step.code_point;
}

uint32_t code_point_before(std::string_view text, size_t position, int* size) {
  size_t begin = position - 1;
  while (begin > 0 && position - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  *size = static_cast<int>(position - begin);
  return utf8_step(text, begin).code_point;
}

void append_utf8(uint32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(text, i);
    if (!step.valid) return false;
    i += static_cast<size_t>(step.size);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    const auto size = static_cast<size_t>(step.size);
    out.append(step.valid ? text.substr(i, size) : std::string_view("\xEF\xBF\xBD"));
    i += size;
  }
  return out;
}

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return category_of(c)[0] == 'N';
}

bool is_word(uint32_t c) {
  const std::string_view category = category_of(c);
  if (category[0] == 'L' || category[0] == 'M') return true;
  if (category == "Nd" || category == "Nl" || category == "Pc") return true;
  if (c == 0x200C || c == 0x200D) return true;  // join controls
  return (c >= 0x24B6 && c <= 0x24E9) ||        // circled and squared letters are alphabetic
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

std::string to_nfc(std::string_view text) {
  // Nothing below U+0300 is changed by composition unless something from there on follows it.
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
  if (plain) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> code_points;
  for (size_t i = 0; i < text.size();) {
    int size = 0;
    const uint32_t c = code_point_at(text, i, &size);
    i += static_cast<size_t>(size);
    if (is_young(c)) {
      append_composed(code_points, out);
      append_utf8(c, out);
    } else {
      append_decomposed(c, code_points);
    }
  }
  append_composed(code_points, out);
  return out;
}

bool with_older_stand_ins(std::string_view text, std::string& out) {
  bool copied = false;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0xE0) {  // the table starts above the two-byte sequences
      ++i;
      continue;
    }
    int size = 0;
    const uint32_t c = code_point_at(text, i, &size);
    if (const Addition* addition = find_addition(c); addition != nullptr && addition->category[1] != '#') {
      if (!copied) out.assign(text);
      copied = true;
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(stand_in(*addition, c)),
                           reinterpret_cast<utf8proc_uint8_t*>(out.data() + i));
    }
    i += static_cast<size_t>(size);
  }
  return copied;
}

}  // namespace octavo
