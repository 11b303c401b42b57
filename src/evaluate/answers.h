// Baseline answers: what a model says to a set of prompts, written down, and how another's answers differ.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/model.h"

namespace octavo {

class SectionLog;  // evaluate/section_log.h

struct AnswerPrompt {
  std::string id;
  std::vector<TokenId> tokens;
};

// Lines {"prompt": text}, {"messages": [...]} (through the chat template) or {"tokens": [ids]}, each with an "id" or
// named by its line.
Result<std::vector<AnswerPrompt>> read_prompts(const Model& model, const std::filesystem::path& path);

// Inputs at the borders of what a model takes: nothing, one token, the longest context and one more, a repeated token,
// unusual Unicode, white space, every special token, the first and the last id.
std::vector<AnswerPrompt> boundary_prompts(const Model& model);

// Greedy answers. A line of settings (prompts, max_tokens, model, plan), then {"id", "prompt_tokens", "text", "tokens",
// "logprobs", "finish_reason"} per prompt in order; a prompt that is refused has "error". Answers that `log` has are
// not given again.
Result<std::vector<Json>> write_answers(Model& model, const std::vector<AnswerPrompt>& prompts, int64_t max_tokens,
                                        const std::function<void(int64_t done, int64_t total)>& progress = {},
                                        SectionLog* log = nullptr);
// A name for prompts: their hash.
std::string prompts_hash(const std::vector<AnswerPrompt>& prompts);

struct AnswerDifference {
  std::string id;
  bool same = false;   // token by token, or both refused
  int64_t common = 0;  // tokens before the first difference
  int64_t base_tokens = 0, tokens = 0;
  double largest_logprob_change = 0;  // over the common tokens
  std::string base_text, text;        // or the error
};
// Error: lists of other prompts or another max_tokens.
Result<std::vector<AnswerDifference>> compare_answers(const std::vector<Json>& base, const std::vector<Json>& answers);

}  // namespace octavo
