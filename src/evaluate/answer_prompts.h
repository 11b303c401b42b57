// Greedy or seeded answers to many prompts at once, by the serving engine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/serving.h"

namespace octavo {

struct GeneratedAnswer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // of the tokens
  std::string text;
  std::string finish_reason;  // "stop", "length"; "error" with `error`
  std::string error;          // why the prompt was refused
  int64_t prompt_tokens = 0;
};

// Answers come in any order: done(i, answer), on the calling thread; its error ends the run. The answers do not depend
// on what runs beside them. A prompt that the engine refuses is an answer with an error.
Result<void> answer_prompts(Model& model, std::vector<GenerationRequest> requests,
                            const std::function<Result<void>(size_t i, GeneratedAnswer answer)>& done);

}  // namespace octavo
