#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace octavo {
namespace {

bool word_before(std::string_view text, size_t position) {
  int size = 0;
  return position > 0 && is_word(code_point_before(text, position, &size));
}

bool word_after(std::string_view text, size_t position) {
  int size = 0;
  return position < text.size() && is_word(code_point_at(text, position, &size));
}

size_t skip_space_before(std::string_view text, size_t position, size_t limit) {
  while (position > limit) {
    int size = 0;
    if (!is_white_space(code_point_before(text, position, &size))) break;
    position -= static_cast<size_t>(size);
  }
  return std::max(position, limit);
}

size_t skip_space_after(std::string_view text, size_t position) {
  while (position < text.size()) {
    int size = 0;
    if (!is_white_space(code_point_at(text, position, &size))) break;
    position += static_cast<size_t>(size);
  }
  return position;
}

}  // namespace

void AddedTokenMatcher::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (const char c : content) {
    uint32_t& next = edges_[static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c)];
    if (next == 0) {
      next = static_cast<uint32_t>(ends_.size());
      ends_.push_back(-1);
    }
    node = next;
  }
  starts_[static_cast<uint8_t>(content[0])] = true;
  if (ends_[node] >= 0) return;  // two contents that normalize to the same text: the first one stands
  ends_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip, token.special});
}

bool AddedTokenMatcher::find_next(std::string_view text, size_t from, Found& found) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    uint32_t node = 0;
    int32_t longest = -1;
    for (size_t i = begin; i < text.size(); ++i) {
      const uint32_t* next = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
      if (next == nullptr) break;
      node = *next;
      if (ends_[node] < 0) continue;
      longest = ends_[node];
      found.end = i + 1;
    }
    if (longest < 0) continue;
    found.begin = begin;
    found.token = &tokens_[static_cast<size_t>(longest)];
    return true;
  }
  return false;
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special, std::vector<Part>& parts) const {
  size_t done = 0;       // everything before is in `parts`
  size_t swallowed = 0;  // end of the last run of white space that an rstrip took: not walked again
  Found found{};
  for (size_t from = 0; find_next(text, from, found); from = found.end) {
    const Token& token = *found.token;
    if (token.special && !parse_special) continue;
    if (token.single_word && (word_before(text, found.begin) || word_after(text, found.end))) continue;
    size_t begin = found.begin, end = found.end;
    // White space that the token before has swallowed stays with that token.
    if (token.lstrip) begin = std::max(done, skip_space_before(text, begin, std::min(done, begin)));
    if (token.rstrip) swallowed = end = end < swallowed ? swallowed : skip_space_after(text, end);
    if (begin >= end) continue;  // nothing is left of it: white space that the token before has taken
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
}

}  // namespace octavo
