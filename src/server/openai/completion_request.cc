// /v1/completions: prompts as text, token ids, or lists of either; echo and log-probabilities.
#include <fmt/format.h>

#include <algorithm>

#include "server/openai/generation_fields.h"

namespace octavo {
namespace {

constexpr size_t kMaxPrompts = 1024;
constexpr int64_t kDefaultMaxTokens = 16;

ApiResult<Prompt> token_prompt(const Json& list, size_t vocab_size, const std::string& param) {
  Prompt prompt;
  prompt.tokens.reserve(list.size());
  for (const Json& json : list) {
    const std::optional<int64_t> id = whole_number(json);
    if (!id || *id < 0 || *id >= static_cast<int64_t>(vocab_size))
      return refuse({.message = fmt::format("'{}' must hold token ids from 0 to {}", param, vocab_size - 1),
                     .param = param,
                     .code = "invalid_value"});
    prompt.tokens.push_back(static_cast<TokenId>(*id));
  }
  return prompt;
}

ApiResult<Prompt> one_prompt(const Json& json, bool add_special, const TextEngine& engine, const std::string& param) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    OCTAVO_API_TRY(check_text_size(text, engine, param));
    return text_prompt(text, add_special, engine.tokenizer());
  }
  if (json.is_array()) return token_prompt(json, engine.tokenizer().vocab_size(), param);
  return refuse({.message = fmt::format("'{}' must be a string, a list of token ids, or a list of either", param),
                 .param = param,
                 .code = "invalid_type"});
}

ApiResult<std::vector<Prompt>> read_prompts(const Json& body, bool add_special, const TextEngine& engine) {
  const Json* json = Fields(body).get("prompt");
  if (json == nullptr)
    return refuse({.message = "'prompt' is missing", .param = "prompt", .code = "missing_required_parameter"});
  std::vector<Prompt> prompts;
  const bool many = json->is_array() && !json->empty() && (json->front().is_string() || json->front().is_array());
  if (!many) {
    OCTAVO_API_ASSIGN(Prompt prompt, one_prompt(*json, add_special, engine, "prompt"));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (json->size() > kMaxPrompts)
    return refuse({.message = fmt::format("'prompt' may hold at most {} prompts", kMaxPrompts), .param = "prompt"});
  for (size_t i = 0; i < json->size(); ++i) {
    OCTAVO_API_ASSIGN(Prompt prompt, one_prompt((*json)[i], add_special, engine, fmt::format("prompt[{}]", i)));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

void read_completion_logprobs(Fields& fields, Job& job) {
  const Json* json = fields.get("logprobs");
  if (json != nullptr && json->is_boolean()) {
    job.logprobs = json->get<bool>();
    job.shared.num_logprobs = job.logprobs ? 1 : -1;
  } else if (const auto count = fields.integer("logprobs", 0, 20)) {
    job.logprobs = true;
    job.shared.num_logprobs = static_cast<int>(*count);
  }
  job.echo = fields.boolean("echo").value_or(false);
  job.shared.prompt_logprobs = job.echo && job.logprobs;
}

}  // namespace

ApiResult<Job> parse_completion_request(const Json& body, const RequestContext& context) {
  Job job;
  OCTAVO_API_ASSIGN(job.model, checked_model(body, context.model_names));
  Fields fields(body);
  read_generation_fields(fields, context, job);
  read_completion_logprobs(fields, job);
  fields.unsupported("suffix", "");
  const bool add_special = fields.boolean("add_special_tokens").value_or(true);
  const int64_t max_tokens = fields.integer("max_tokens", 0).value_or(kDefaultMaxTokens);
  if (max_tokens == 0 && !job.echo)
    fields.fail("max_tokens", "'max_tokens' must be at least 1, or 0 with 'echo': true", "invalid_value");
  if (fields.error()) return refuse(*fields.error());
  OCTAVO_API_ASSIGN(job.prompts, read_prompts(body, add_special, context.engine));
  job.prompt_only = max_tokens == 0;
  OCTAVO_API_TRY(check_lengths(job, std::max<int64_t>(1, max_tokens), context.engine.max_model_len()));
  if (job.prompt_only) job.shared.max_tokens = job.shared.min_tokens = 0;
  return job;
}

}  // namespace octavo
