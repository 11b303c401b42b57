// Cutting and joining text as Python's str methods do.
#include "text/jinja/string_tools.h"

#include <string.h>

#include <algorithm>
#include <unordered_set>

#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

std::vector<std::string> split_spaces(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  const auto skip = [text](size_t i, bool spaces) {
    while (i < text.size()) {
      size_t next = i;
      if (is_space(next_code_point(text, &next)) != spaces) break;
      i = next;
    }
    return i;
  };
  for (size_t i = skip(0, true); i < text.size(); i = skip(i, true)) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text.substr(i));
      break;
    }
    const size_t end = skip(i, false);
    parts.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return parts;
}

std::vector<std::string> split_spaces_from_right(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  const auto skip = [text](size_t i, bool spaces) {
    while (i > 0) {
      size_t previous = i;
      if (is_space(previous_code_point(text, &previous)) != spaces) break;
      i = previous;
    }
    return i;
  };
  for (size_t i = skip(text.size(), true); i > 0; i = skip(i, true)) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text.substr(0, i));
      break;
    }
    const size_t begin = skip(i, false);
    parts.emplace_back(text.substr(begin, i - begin));
    i = begin;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

size_t find_part(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string strip(std::string_view text, const Value* characters, bool left, bool right) {
  spend_steps(text.size() / 64);
  std::unordered_set<char32_t> set;
  if (characters != nullptr)
    for (size_t i = 0; i < characters->text().size();) set.insert(next_code_point(characters->text(), &i));
  const auto drops = [&](char32_t c) { return characters == nullptr ? is_space(c) : set.contains(c); };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!drops(next_code_point(text, &next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t previous = end;
    if (!drops(previous_code_point(text, &previous))) break;
    end = previous;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string replace_text(std::string_view text, std::string_view old_part, std::string_view new_part, int64_t count) {
  spend_steps(text.size() / 64);
  std::string out;
  size_t i = 0;
  if (old_part.empty()) {  // between all characters, and at both ends
    for (; count != 0; --count) {
      out += new_part;
      check_text_size(out.size());
      if (i >= text.size()) return out;
      const size_t begin = i;
      next_code_point(text, &i);
      out += text.substr(begin, i - begin);
      spend_steps(1);
    }
    return out.append(text.substr(i));
  }
  for (; count != 0; --count) {
    const size_t found = find_part(text, old_part, i);
    if (found == std::string_view::npos) break;
    out += text.substr(i, found - i);
    out += new_part;
    check_text_size(out.size());
    spend_steps(1);
    i = found + old_part.size();
  }
  return out.append(text.substr(i));
}

std::vector<std::string> split(std::string_view text, const std::string* separator, int64_t limit, bool from_right) {
  spend_steps(text.size() / 16 + 1);
  if (separator == nullptr) return from_right ? split_spaces_from_right(text, limit) : split_spaces(text, limit);
  if (separator->empty()) raise("empty separator");
  std::vector<size_t> cuts;
  if (!from_right || limit < 0) {
    for (size_t i = 0; limit < 0 || static_cast<int64_t>(cuts.size()) < limit;) {
      const size_t found = find_part(text, *separator, i);
      if (found == std::string_view::npos) break;
      cuts.push_back(found);
      i = found + separator->size();
    }
    if (from_right && limit < 0 && separator->size() > 1) cuts.clear();
  }
  if (from_right && cuts.empty()) {  // overlapping separators are taken from the right: search the mirrored text
    const std::string mirrored(text.rbegin(), text.rend()), part(separator->rbegin(), separator->rend());
    for (size_t i = 0; limit < 0 || static_cast<int64_t>(cuts.size()) < limit;) {
      const size_t found = find_part(mirrored, part, i);
      if (found == std::string_view::npos) break;
      cuts.push_back(text.size() - found - separator->size());
      i = found + separator->size();
    }
    std::reverse(cuts.begin(), cuts.end());
  }
  std::vector<std::string> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.emplace_back(text.substr(begin, cut - begin));
    begin = cut + separator->size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  spend_steps(text.size() / 16 + 1);
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t end = i;
    const char32_t c = next_code_point(text, &i);
    const bool breaks = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string center_text(std::string_view text, int64_t width, std::string_view fill) {
  const auto length = static_cast<int64_t>(count_code_points(text));
  if (width <= length) return std::string(text);
  const int64_t missing = width - length;
  check_text_size(static_cast<size_t>(missing), fill.size());
  const int64_t left = missing / 2 + (missing & width & 1);  // CPython's choice of the side that gets one more
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace octavo::jinja
