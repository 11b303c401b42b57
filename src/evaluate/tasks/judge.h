// Judging what was measured of an item: the formulas of lm-evaluation-harness.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate/tasks/task.h"

namespace octavo {

// Which choice wins: by log-likelihood; divided by the choice's length in code points, and in bytes (of the choice
// alone, without the delimiter). The first among equals.
struct ChoiceVerdict {
  int64_t by_sum = 0, by_characters = 0, by_bytes = 0;
};
ChoiceVerdict judge_choices(std::span<const double> loglikelihoods, std::span<const std::string> choices);

// GSM8K: what is taken for the answer of a text: the first number after "#### " (strict), the last number (flexible);
// "[invalid]" where there is none.
std::string strict_number(std::string_view text);
std::string flexible_number(std::string_view text);
// Equal after commas, "$", all up to the last "#### " and a final "." are taken away, whatever the case.
bool same_number(std::string_view extracted, std::string_view answer);

std::string_view trim(std::string_view text);  // of ASCII white space

}  // namespace octavo
