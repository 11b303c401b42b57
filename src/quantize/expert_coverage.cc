#include "quantize/expert_coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace octavo {
namespace {

constexpr size_t kNamed = 8;  // experts that a note names

std::string names(const std::vector<size_t>& experts) {
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, experts.size()); ++i) text += fmt::format("{}{}", i ? ", " : "", experts[i]);
  return experts.size() > kNamed ? fmt::format("{} and {} more", text, experts.size() - kNamed) : text;
}

std::string_view plural(const std::vector<size_t>& experts) {
  return experts.size() == 1 ? "expert" : "experts";
}

}  // namespace

std::vector<std::string> expert_notes(int layer, std::span<const int64_t> tokens) {
  std::vector<size_t> unreached, few;
  for (size_t e = 0; e < tokens.size(); ++e)
    if (tokens[e] < kFewExpertTokens) (tokens[e] == 0 ? unreached : few).push_back(e);
  std::vector<std::string> notes;
  if (!unreached.empty())
    notes.push_back(fmt::format(
        "layer {}: no token of the calibration reached {} {}: calibrated on all tokens of the layer instead", layer,
        plural(unreached), names(unreached)));
  if (!few.empty())
    notes.push_back(fmt::format("layer {}: {} {} saw fewer than {} tokens: give more text, or text like the traffic",
                                layer, plural(few), names(few), kFewExpertTokens));
  return notes;
}

ExpertCoverage expert_coverage(const std::vector<std::vector<int64_t>>& tokens) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& layer : tokens) all.insert(all.end(), layer.begin(), layer.end());
  ExpertCoverage coverage{.experts = std::ssize(all)};
  if (all.empty()) return coverage;
  std::sort(all.begin(), all.end());
  coverage.unreached = std::count(all.begin(), all.end(), 0);
  coverage.few = std::lower_bound(all.begin(), all.end(), kFewExpertTokens) - all.begin() - coverage.unreached;
  coverage.least = all.front();
  coverage.median = all[all.size() / 2];
  coverage.most = all.back();
  return coverage;
}

}  // namespace octavo
