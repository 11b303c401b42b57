#include "server/openai/logprobs_json.h"

#include <fmt/format.h>

#include <cmath>

#include "server/openai/json_text.h"
#include "text/utf8.h"

namespace octavo {
namespace {

std::string id_name(TokenId id) {
  return fmt::format("token_id:{}", id);
}

Json chat_entry(TokenId id, float logprob, const Tokenizer& tokenizer, bool as_ids) {
  const std::string bytes = tokenizer.token_bytes(id);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<uint8_t>(c));
  return {{"token", as_ids ? id_name(id) : replace_invalid_utf8(bytes)},
          {"logprob", json_logprob(logprob)},
          {"bytes", std::move(list)}};
}

// A token as completions spell it: its text, or "bytes:\xE2\x80" for a part of a character.
std::string completion_token(TokenId id, const Tokenizer& tokenizer, bool as_ids) {
  if (as_ids) return id_name(id);
  std::string bytes = tokenizer.token_bytes(id);
  if (is_valid_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return out;
}

int64_t code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace

Json chat_logprobs(std::span<const TokenLogprob> entries, const Tokenizer& tokenizer, bool as_ids) {
  Json content = Json::array();
  for (const TokenLogprob& entry : entries) {
    Json one = chat_entry(entry.token, entry.logprob, tokenizer, as_ids);
    Json& top = one["top_logprobs"] = Json::array();
    for (const auto& [id, logprob] : entry.top) top.push_back(chat_entry(id, logprob, tokenizer, as_ids));
    content.push_back(std::move(one));
  }
  return content;
}

void CompletionLogprobs::add_entry(const TokenLogprob& entry, bool has_logprob) {
  tokens_.push_back(completion_token(entry.token, tokenizer_, as_ids_));
  offsets_.push_back(offset_);
  if (!has_logprob) {
    logprobs_.push_back(nullptr);
    top_.push_back(nullptr);
    return;
  }
  logprobs_.push_back(json_logprob(entry.logprob));
  Json top = Json::object();
  // Most likely first: of two tokens that spell the same, the likelier one stays.
  for (const auto& [id, logprob] : entry.top)
    top.emplace(completion_token(id, tokenizer_, as_ids_), json_logprob(logprob));
  top.emplace(completion_token(entry.token, tokenizer_, as_ids_), json_logprob(entry.logprob));
  top_.push_back(std::move(top));
}

void CompletionLogprobs::add_prompt(std::span<const TokenLogprob> entries, size_t added) {
  StreamDecoder decoder(tokenizer_, false);
  for (size_t i = 0; i < entries.size(); ++i) {
    add_entry(entries[i], i > 0);
    if (i >= added) offset_ += code_points(decoder.push(entries[i].token));
  }
  offset_ += code_points(decoder.finish());
}

void CompletionLogprobs::add(std::span<const TokenLogprob> entries) {
  for (const TokenLogprob& entry : entries) {
    add_entry(entry, true);
    offset_ += code_points(decoder_.push(entry.token));
  }
}

Json CompletionLogprobs::take() {
  const auto all = [](Json& list) { return std::exchange(list, Json::array()); };
  return {{"tokens", all(tokens_)},
          {"token_logprobs", all(logprobs_)},
          {"top_logprobs", all(top_)},
          {"text_offset", all(offsets_)}};
}

std::string echo_text(std::span<const TokenId> prompt, size_t added, const Tokenizer& tokenizer) {
  return tokenizer.decode(prompt.subspan(std::min(added, prompt.size())), false);
}

}  // namespace octavo
