// How many tokens of the calibration passed each expert.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo {

inline constexpr int64_t kFewExpertTokens = 512;  // of one expert: below this a note

// Notes on a layer: experts that no token reached, and those that few did.
std::vector<std::string> expert_notes(int layer, std::span<const int64_t> tokens);

// Of a whole model.
struct ExpertCoverage {
  int64_t experts = 0, unreached = 0, few = 0;  // few: some tokens, but below kFewExpertTokens
  int64_t least = 0, median = 0, most = 0;      // tokens of an expert
};
// tokens: by layer and expert; dense layers are empty.
ExpertCoverage expert_coverage(const std::vector<std::vector<int64_t>>& tokens);

}  // namespace octavo
