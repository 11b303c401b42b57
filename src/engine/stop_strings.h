// StopStrings: finds stop strings in a stream of text, whatever the borders of its pieces.
//
// The answer ends before the stop string that starts first (of those that start together, the shortest), as if the
// whole text had been searched. Text that may yet be part of one is held back: an earlier start that is still open is
// waited for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);

  // The text that is now certain to come before any stop string. After a match there is no more.
  std::string push(std::string_view text);
  // No more text comes: what was held back, up to a match that an open start had kept waiting.
  std::string finish();

  const std::optional<std::string>& match() const { return match_; }

 private:
  std::string scan(bool at_end);

  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> match_;
};

}  // namespace octavo
