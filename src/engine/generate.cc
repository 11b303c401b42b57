#include "engine/generate.h"

#include <algorithm>
#include <chrono>

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

}  // namespace

Result<GenerateResult> generate(Model& model, Sequence& sequence, std::span<const TokenId> prompt,
                                const GenerateOptions& options, FunctionRef<bool(std::string_view)> on_text) {
  if (prompt.empty()) return fail({.what = "the prompt is empty", .remedy = "give at least one token"});
  OCTAVO_TRY(check_sampling(options.sampling));
  const auto start = std::chrono::steady_clock::now();
  sequence.truncate(common_prefix(sequence.tokens(), prompt));
  OCTAVO_TRY(sequence.feed(prompt.subspan(static_cast<size_t>(sequence.length()))));

  GenerateResult result{.finish_reason = "length", .prompt_tokens = static_cast<int64_t>(prompt.size())};
  Sampler sampler(options.sampling);
  StreamDecoder decoder(model.tokenizer());
  const auto limit = static_cast<int64_t>(model.tokenizer().vocab_size());
  double first = 0;
  bool wanted = true;
  const auto emit = [&](std::string piece) {
    if (piece.empty()) return;
    result.text += piece;
    wanted = on_text(piece) && wanted;
  };
  while (static_cast<int64_t>(result.tokens.size()) < options.max_tokens && wanted) {
    const TokenId id = sampler.sample(sequence.logits(), limit);
    if (first == 0) result.first_token_seconds = first = seconds_since(start);
    if (!options.ignore_end && model.is_end(id)) {
      result.finish_reason = "stop";
      break;
    }
    result.tokens.push_back(id);
    emit(decoder.push(id));
    if (sequence.length() >= model.config().context_length()) break;
    if (static_cast<int64_t>(result.tokens.size()) < options.max_tokens) OCTAVO_TRY(sequence.feed({&id, 1}));
  }
  emit(decoder.finish());
  const auto later = static_cast<double>(result.tokens.size()) - 1;
  if (later > 0) result.seconds_per_token = (seconds_since(start) - first) / later;
  return result;
}

}  // namespace octavo
