// Generation of one answer, streamed.
#pragma once

#include <functional>
#include <string_view>

#include "engine/sampler.h"
#include "engine/sequence.h"

namespace octavo {

struct GenerateOptions {
  SamplingParams sampling;
  int64_t max_tokens = 256;
  bool ignore_end = false;  // go on past end-of-sequence tokens
};

struct GenerateResult {
  std::vector<TokenId> tokens;  // generated, without the end token
  std::string text;
  std::string finish_reason;  // "stop", "length"
  int64_t prompt_tokens = 0;
  double first_token_seconds = 0;  // TTFT: from the call to the first token
  double seconds_per_token = 0;    // TPOT: mean over the tokens after the first
};

// Feeds the prompt (what `sequence` does not hold yet), then samples. `on_text` gets pieces of valid UTF-8; return
// false to stop.
Result<GenerateResult> generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                                const GenerateOptions& options, FunctionRef<bool(std::string_view)> on_text);

}  // namespace octavo
