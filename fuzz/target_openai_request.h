// What the fuzzer of API requests does with an input: parses it as each kind of request; what is accepted must keep its
// promises to the engine.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "../tests/server/byte_tokenizer.h"
#include "base/check.h"
#include "server/openai/job.h"

namespace octavo {

inline void check_job(const Job& job, const TextEngine& engine) {
  OCTAVO_CHECK(!job.prompts.empty() && job.n >= 1 && job.num_choices() <= 1024);
  const auto vocab = static_cast<TokenId>(engine.tokenizer().vocab_size());
  for (const Prompt& prompt : job.prompts) {
    OCTAVO_CHECK(!prompt.tokens.empty() && static_cast<int64_t>(prompt.tokens.size()) <= engine.max_model_len());
    OCTAVO_CHECK(prompt.added <= prompt.tokens.size());
    for (const TokenId id : prompt.tokens) OCTAVO_CHECK(id >= 0 && id < vocab);
  }
  const SamplingParams& sampling = job.shared.sampling;
  OCTAVO_CHECK(sampling.temperature >= 0 && sampling.temperature <= 2 && sampling.top_p > 0 && sampling.top_p <= 1);
  OCTAVO_CHECK(sampling.repetition_penalty > 0 && sampling.top_k >= 0);
  for (const auto& [id, bias] : sampling.logit_bias) OCTAVO_CHECK(id >= 0 && id < vocab && bias >= -100 && bias <= 100);
  for (const std::string& stop : job.shared.stop) OCTAVO_CHECK(!stop.empty());
  OCTAVO_CHECK(job.shared.num_logprobs >= -1 && job.shared.num_logprobs <= 20);
  OCTAVO_CHECK(job.shared.min_tokens <= job.shared.max_tokens);
}

inline void fuzz_openai_request(std::span<const std::byte> input) {
  static const SilentEngine engine;
  static const std::vector<std::string> names = {"m"};
  ConstraintCompiler constraints(engine);
  const RequestContext context{engine, names, constraints};
  const ApiResult<Json> body = parse_body({reinterpret_cast<const char*>(input.data()), input.size()});
  if (!body) return;
  for (const auto parse : {parse_chat_request, parse_completion_request}) {
    const ApiResult<Job> job = parse(*body, context);
    if (!job) {
      OCTAVO_CHECK(job.error().status >= 400 && !job.error().message.empty());
      OCTAVO_CHECK(Json::accept(error_body(job.error())));
      continue;
    }
    check_job(*job, engine);
  }
}

}  // namespace octavo
