#include "engine/stop_strings.h"

#include <algorithm>

namespace octavo {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
  // Shortest first: of those that start together it is complete first.
  std::stable_sort(stops_.begin(), stops_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
}

std::string StopStrings::push(std::string_view text) {
  if (match_) return {};
  if (stops_.empty()) return std::string(text);
  held_ += text;
  return scan(false);
}

std::string StopStrings::finish() {
  return match_ ? std::string() : scan(true);
}

std::string StopStrings::scan(bool at_end) {
  size_t certain = held_.size();
  for (size_t start = 0; start < held_.size() && certain == held_.size(); ++start) {
    const std::string_view rest = std::string_view(held_).substr(start);
    for (const std::string& stop : stops_) {
      if (rest.starts_with(stop)) {
        match_ = stop;
        certain = start;
        break;
      }
      if (!at_end && rest.size() < stop.size() && stop.starts_with(rest)) {
        certain = start;
        break;
      }
    }
  }
  std::string text = held_.substr(0, certain);
  match_ ? held_.clear() : void(held_.erase(0, certain));
  return text;
}

}  // namespace octavo
