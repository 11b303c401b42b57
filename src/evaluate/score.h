// Log-likelihood of token spans: many at once, with the prefixes that neighbours share computed once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/model.h"

namespace octavo {

// Tokens of which the last `scored` are scored, each given all before it.
struct ScoreSpan {
  std::vector<TokenId> tokens;
  int64_t scored = 0;
  int64_t truncated = 0;  // tokens of the beginning that are not here: the text was longer than the context
};

struct SpanScore {
  double loglikelihood = 0;  // sum of ln P over the scored tokens
  bool greedy = true;        // every scored token is the most likely one
  int64_t worst_rank = 0;    // of the scored tokens: how many tokens were likelier
};

// The tokens of `context` and `continuation` as lm-evaluation-harness cuts them: white space at the context's end moves
// to the continuation; both are encoded together, and what lies past the length of the context's own encoding is
// scored. An empty context is the model's BOS (EOS where it has none). add_special: with what the tokenizer's
// post-processor adds. Text longer than the model's context loses its beginning. Error: nothing to score, or more than
// the context holds.
Result<ScoreSpan> split_span(const Model& model, std::string_view context, std::string_view continuation,
                             bool add_special = false);

// The scores do not depend on the batch or on what is shared. `progress`: spans done.
Result<std::vector<SpanScore>> score_spans(Model& model, std::span<const ScoreSpan> spans,
                                           const std::function<void(int64_t done)>& progress = {});

}  // namespace octavo
