#include "evaluate/accept/scheme_summaries.h"

#include <algorithm>

namespace octavo {
namespace {

constexpr size_t kWorst = 10;

Json summary_of(const Sensitivity& sensitivity, const std::string& scheme, bool cache) {
  const std::vector<SensitivityEntry>& entries = sensitivity.entries;
  int64_t counts[3] = {};
  std::vector<size_t> of_scheme;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].scheme != scheme || entries[i].of_cache() != cache) continue;
    ++counts[static_cast<size_t>(entries[i].verdict())];
    of_scheme.push_back(i);
  }
  std::stable_sort(of_scheme.begin(), of_scheme.end(),
                   [&](size_t a, size_t b) { return entries[a].loss() > entries[b].loss(); });
  const auto [low, high] = std::minmax_element(of_scheme.begin(), of_scheme.end(),
                                               [&](size_t a, size_t b) { return entries[a].kl < entries[b].kl; });
  Json summary = {{"part", cache ? "kv_cache" : "weights"},
                  {"scheme", scheme},
                  {"layers", sensitivity.model.layers},
                  {"free", counts[0]},
                  {"watch", counts[1]},
                  {"keep_wide", counts[2]},
                  {"lowest", entries[*low].kl},
                  {"highest", entries[*high].kl},
                  {"worst", Json::array()}};
  for (size_t i = 0; i < std::min(kWorst, of_scheme.size()); ++i) summary["worst"].push_back(of_scheme[i]);
  return summary;
}

}  // namespace

Json scheme_summaries(const Sensitivity& sensitivity) {
  Json out = Json::array();
  for (const bool cache : {false, true})
    for (const std::string& scheme : measured_schemes(sensitivity, cache))
      out.push_back(summary_of(sensitivity, scheme, cache));
  return out;
}

}  // namespace octavo
