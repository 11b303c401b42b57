#include "evaluate/tasks/judge.h"

#include <algorithm>

namespace octavo {
namespace {

bool any_of(char c, std::string_view set) {
  return set.find(c) != std::string_view::npos;
}

// Length of the run of `set` at `begin`.
size_t run_of(std::string_view text, size_t begin, std::string_view set) {
  size_t end = begin;
  while (end < text.size() && any_of(text[end], set)) ++end;
  return end - begin;
}

constexpr std::string_view kDigits = "0123456789", kStrict = "0123456789.,", kFlexible = "$0123456789.,";
constexpr std::string_view kMark = "#### ", kInvalid = "[invalid]";

// Length of a match of -?[$0-9.,]{2,} or else -?[0-9]+ at `begin`; 0: none.
size_t number_at(std::string_view text, size_t begin) {
  const size_t sign = begin < text.size() && text[begin] == '-' ? 1 : 0;
  if (const size_t run = run_of(text, begin + sign, kFlexible); run >= 2) return sign + run;
  const size_t run = run_of(text, begin + sign, kDigits);
  return run > 0 ? sign + run : 0;
}

std::string plain_number(std::string_view text) {
  std::string kept;
  for (const char c : text)
    if (c != ',' && c != '$') kept += c;
  if (const size_t mark = kept.rfind(kMark); mark != std::string::npos) kept.erase(0, mark + kMark.size());
  if (kept.ends_with('.')) kept.pop_back();
  for (char& c : kept)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return kept;
}

}  // namespace

ChoiceVerdict judge_choices(std::span<const double> loglikelihoods, std::span<const std::string> choices) {
  ChoiceVerdict verdict;
  double best_characters = 0, best_bytes = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto bytes = static_cast<double>(choices[i].size());
    const auto characters = static_cast<double>(
        std::count_if(choices[i].begin(), choices[i].end(), [](char c) { return (c & 0xC0) != 0x80; }));
    const auto at = static_cast<int64_t>(i);
    const double by_characters = loglikelihoods[i] / characters, by_bytes = loglikelihoods[i] / bytes;
    if (i == 0 || loglikelihoods[i] > loglikelihoods[static_cast<size_t>(verdict.by_sum)]) verdict.by_sum = at;
    if (i == 0 || by_characters > best_characters) {
      verdict.by_characters = at;
      best_characters = by_characters;
    }
    if (i == 0 || by_bytes > best_bytes) {
      verdict.by_bytes = at;
      best_bytes = by_bytes;
    }
  }
  return verdict;
}

std::string strict_number(std::string_view text) {
  for (size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + 1)) {
    const size_t begin = at + kMark.size(), sign = begin < text.size() && text[begin] == '-' ? 1 : 0;
    const size_t run = run_of(text, begin + sign, kStrict);
    if (run > 0) return std::string(text.substr(begin, sign + run));
  }
  return std::string(kInvalid);
}

std::string flexible_number(std::string_view text) {
  std::string last(kInvalid);
  for (size_t i = 0; i < text.size();) {
    const size_t length = number_at(text, i);
    if (length > 0) last = text.substr(i, length);
    i += std::max<size_t>(1, length);
  }
  return last;
}

bool same_number(std::string_view extracted, std::string_view answer) {
  return plain_number(extracted) == plain_number(answer);
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace octavo
