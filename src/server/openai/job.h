// Job: a completion or chat request, checked and tokenized: what is to be generated and how it is to be told.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/constrain/constraint.h"
#include "server/openai/api_error.h"
#include "server/text_engine.h"

namespace octavo {

struct Prompt {
  std::vector<TokenId> tokens;
  size_t added = 0;  // leading tokens that the tokenizer put before a text; not echoed
};

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

struct Job {
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();
  double wait_seconds = 0;  // until somebody began to read it
  bool chat = false;
  bool stream = false;
  bool include_usage = false;     // stream: one last chunk with the usage
  bool continuous_usage = false;  // stream: usage in every chunk
  std::string model;
  std::vector<Prompt> prompts;
  int64_t n = 1;              // choices per prompt; choice i has seed + i
  GenerationRequest shared;   // all but prompt, seed of the choice, and filter
  bool echo = false;          // the prompt stands before the answer
  bool prompt_only = false;   // max_tokens 0: what is generated is not told
  bool include_stop = false;  // the stop string stays in the text
  bool logprobs = false;
  bool tokens_as_ids = false;                    // log-probabilities name tokens "token_id:5"
  bool token_ids = false;                        // the ids of prompt and answer are told
  std::shared_ptr<const Constraint> constraint;  // null: free text
  ToolChoice tool_choice = ToolChoice::kNone;
  std::vector<std::string> tool_names;  // kNamed: the one
  bool one_call = false;                // at most one call is told

  size_t num_choices() const { return prompts.size() * static_cast<size_t>(n); }
};

// What parsing needs to know of the server.
struct RequestContext {
  const TextEngine& engine;
  const std::vector<std::string>& model_names;  // the first is the one told
  ConstraintCompiler& constraints;
};

// The body as an object. Errors: not JSON (`param` names the field of a NaN or of a number out of range), not an
// object.
ApiResult<Json> parse_body(std::string_view body);
ApiResult<Job> parse_chat_request(const Json& body, const RequestContext& context);
ApiResult<Job> parse_completion_request(const Json& body, const RequestContext& context);

// The conversation of a chat-like request as the model's template spells it, tokenized. `any_length`: also one that the
// context cannot hold.
ApiResult<std::vector<TokenId>> chat_tokens(const Json& body, const TextEngine& engine, bool any_length = false);
// A text as a prompt. `add_special`: with the tokens that the tokenizer adds, unless the text already begins with them.
Prompt text_prompt(std::string_view text, bool add_special, const Tokenizer& tokenizer);
// Refuses, before it is tokenized, a text of more bytes than the context's tokens can have. `name`: of the field.
ApiResult<void> check_text_size(std::string_view text, const TextEngine& engine, const std::string& name);
// The name that the reply carries. Error 404: no such model.
ApiResult<std::string> checked_model(const Json& body, const std::vector<std::string>& names);

}  // namespace octavo
