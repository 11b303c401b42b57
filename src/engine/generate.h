// Generation of one answer, streamed: the serving engine's sampling and stopping, without its scheduler.
#pragma once

#include <functional>
#include <string_view>

#include "engine/sampler.h"
#include "engine/sequence.h"

namespace octavo {

struct GenerateOptions {
  SamplingParams sampling;
  int64_t max_tokens = 256;  // clamped to what the context holds
  int64_t min_tokens = 0;    // no end token and no stop string before this many
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_end = false;  // go on past end-of-sequence tokens
};

struct GenerateResult {
  std::vector<TokenId> tokens;  // generated, without the end token and what lies past a stop string
  std::string text;
  std::string finish_reason;  // "stop", "length"; "abort" when on_text said so
  int64_t prompt_tokens = 0;
  double first_token_seconds = 0;  // TTFT: from the call to the first token
  double seconds_per_token = 0;    // TPOT: mean over the tokens after the first
};

// Feeds the prompt (what `sequence` does not hold yet), then samples. `on_text` gets pieces of valid UTF-8; return
// false to stop.
Result<GenerateResult> generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                                const GenerateOptions& options, FunctionRef<bool(std::string_view)> on_text);

}  // namespace octavo
