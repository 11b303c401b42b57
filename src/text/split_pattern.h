// Regular expressions of tokenizer files: Oniguruma syntax, run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace octavo {

struct TextRange {
  size_t begin, end;  // bytes
  bool operator==(const TextRange&) const = default;
};

class SplitPattern {
 public:
  // Error: syntax, or a construct that means something else in PCRE2 and is not translated.
  static Result<SplitPattern> regex(std::string_view pattern);
  static Result<SplitPattern> literal(std::string_view text);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Appends the matches in `text` (valid UTF-8), left to right. An empty match counts where no match ended. A pattern
  // that runs into the match limit gives no further matches.
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  SplitPattern();
  struct State;
  std::unique_ptr<State> state_;
};

// The pattern as PCRE2 has to see it (for tests).
Result<std::string> pcre2_from_oniguruma(std::string_view pattern);

}  // namespace octavo
