#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "engine/request.h"

namespace octavo {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Tokens at the front that the sequence already holds; the last prompt token is always computed again, for its logits.
int64_t common_prefix(std::span<const TokenId> held, std::span<const TokenId> prompt) {
  const auto limit = static_cast<ptrdiff_t>(std::min(held.size(), prompt.size() - 1));
  return std::mismatch(held.begin(), held.begin() + limit, prompt.begin()).first - held.begin();
}

Result<AnswerRules> answer_rules(const Model& model, std::span<const TokenId> prompt, const GenerateOptions& options) {
  const int64_t context = model.config().context_length(), length = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) return fail({.what = "the prompt is empty", .remedy = "give at least one token"});
  if (length >= context)
    return fail({.what = "the prompt leaves no room for an answer",
                 .found = fmt::format("{} tokens", length),
                 .expected = fmt::format("at most {}, one less than the model's context", context - 1),
                 .remedy = "shorten the prompt"});
  OCTAVO_TRY(check_sampling(options.sampling, static_cast<int64_t>(model.tokenizer().vocab_size())));
  AnswerRules rules{.max_tokens = std::min(options.max_tokens, context - length),
                    .min_tokens = options.min_tokens,
                    .end_tokens = options.stop_token_ids,
                    .stop = options.stop};
  if (!options.ignore_end)
    rules.end_tokens.insert(rules.end_tokens.end(), model.end_tokens().begin(), model.end_tokens().end());
  return rules;
}

}  // namespace

Result<GenerateResult> generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                                const GenerateOptions& options, FunctionRef<bool(std::string_view)> on_text) {
  const auto start = std::chrono::steady_clock::now();
  OCTAVO_ASSIGN(AnswerRules rules, answer_rules(model, prompt, options));
  sequence.truncate(common_prefix(sequence.tokens(), prompt));
  const std::span<const TokenId> rest = prompt.subspan(static_cast<size_t>(sequence.length()));

  GenerateResult result{.prompt_tokens = static_cast<int64_t>(prompt.size())};
  const Tokenizer& tokenizer = model.tokenizer();
  Sampler sampler(options.sampling, static_cast<int64_t>(tokenizer.vocab_size()), prompt);
  SamplerScratch scratch;
  const bool nothing = rules.max_tokens <= 0;
  Answer answer(tokenizer, std::move(rules));
  if (nothing) {
    OCTAVO_TRY(sequence.feed(rest));
    answer.finish("length");
  }
  const auto limit = std::min(static_cast<int64_t>(tokenizer.vocab_size()), model.config().vocab_size);
  const auto next = [&](std::span<const TokenId> tokens) -> Result<std::optional<TokenId>> {
    if (sampler.wants_highest() && answer.banned().empty()) return sequence.feed_highest(tokens, limit);
    OCTAVO_TRY(sequence.feed(tokens));
    return sampler.choose(sequence.logits(), std::ssize(answer.generated()), answer.banned(), nullptr, scratch);
  };
  double first = 0;
  for (std::optional<TokenId> id; !answer.finished();) {
    OCTAVO_ASSIGN(id, next(id ? std::span<const TokenId>(&*id, 1) : rest));
    if (!id) return fail({.what = "the model's logits are not finite"});
    if (first == 0) result.first_token_seconds = first = seconds_since(start);
    sampler.count(*id);
    answer.push(*id);
    AnswerPiece piece = answer.take();
    result.tokens.insert(result.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    result.text += piece.text;
    if (!piece.text.empty() && !on_text(piece.text)) answer.finish("abort");
  }
  result.finish_reason = answer.finish_reason();
  const auto later = static_cast<double>(answer.generated().size()) - 1;
  if (later > 0) result.seconds_per_token = (seconds_since(start) - first) / later;
  return result;
}

}  // namespace octavo
