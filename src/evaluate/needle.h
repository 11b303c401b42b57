// Needle in a haystack: is a fact found again, whatever its depth in a text and the text's length?
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/model.h"
#include "evaluate/score.h"

namespace octavo {

class SectionLog;  // evaluate/section_log.h

struct NeedleOptions {
  std::vector<int64_t> lengths = {1024, 2048, 4096, 8192};  // tokens, question and answer included
  std::vector<int64_t> depths = {0, 25, 50, 75, 100};       // per cent of the haystack before the needle
  int64_t tries = 1;                                        // facts per cell
  uint64_t seed = 1;                                        // of the facts
  std::string flags = "--";  // what the command's flags for these begin with: errors name them
};
// Error: a length beyond the context, a depth or number of tries out of range.
Result<void> check_needle_options(const ModelConfig& config, const NeedleOptions& options);

// One length and depth. A try is found when every token of the answer is the most likely one.
struct NeedleCell {
  int64_t length = 0, depth = 0, tries = 0, found = 0;
  double logprob = 0;      // ln P(answer), mean over the tries
  int64_t worst_rank = 0;  // of an answer's token: how many tokens were likelier
};

// The haystack is the text's beginning; the needle, "The secret number of PLACE is NUMBER.", stands at the end of a
// sentence near its depth; the question is the needle's first words, the answer the five digits of the number. Error: a
// length beyond the model's context, a text that is too short. Cells that `log` has under `name` are not scored again.
Result<std::vector<NeedleCell>> needle_grid(Model& model, std::string_view text, const NeedleOptions& options,
                                            const std::function<void(int64_t done, int64_t total)>& progress = {},
                                            SectionLog* log = nullptr, const std::string& name = "needles");

// {"length", "depth", "tries", "found", "logprob", "worst_rank"} of each.
Json needle_cells(const std::vector<NeedleCell>& cells);

// The span of one try: `number` hidden at `depth` per cent in a haystack, `length` tokens in all.
Result<ScoreSpan> needle_span(const Model& model, std::span<const TokenId> haystack, int64_t length, int64_t depth,
                              std::string_view place, std::string_view number);

}  // namespace octavo
