// Rules that pick modules by name: an exact name, or "re:PATTERN" with Python's re.match meaning (anchored at the start
// only), as compressed-tensors, vLLM and SGLang read them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace octavo {

class NameRule {
 public:
  // Error: a pattern that does not compile, with the place where it breaks.
  static Result<NameRule> parse(std::string_view text);

  // Error: a pattern that needs more than a bounded number of steps on this name.
  Result<bool> matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  NameRule() = default;
  std::string text_;
  std::shared_ptr<void> pattern_;  // compiled; empty for exact names
};

}  // namespace octavo
