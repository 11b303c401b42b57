// Answers in one piece.
#include <fmt/format.h>

#include "server/openai/json_text.h"
#include "server/openai/random_id.h"
#include "server/openai/reply.h"

namespace octavo {

Json Reply::call_json(const ToolCall& call, const std::string& id) const {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

std::string Reply::chat_choice(Choice& choice, size_t index) const {
  Json message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  Json calls = Json::array();
  if (job_.tool_choice == ToolChoice::kNamed) {
    calls.push_back(call_json({job_.tool_names.front(), choice.text}, choice.call_id));
    message["content"] = nullptr;
  } else if (choice.tools) {
    for (const ToolCall& call : choice.tools->calls()) calls.push_back(call_json(call, random_id("call_")));
    if (!calls.empty() && choice.text.empty()) message["content"] = nullptr;
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  Json json = {{"index", index},
               {"message", std::move(message)},
               {"logprobs", nullptr},
               {"finish_reason", choice.finish_reason},
               {"stop_reason", choice.stop_reason}};
  if (job_.logprobs)
    json["logprobs"] = {{"content", chat_logprobs(choice.logprobs, engine_.tokenizer(), job_.tokens_as_ids)},
                        {"refusal", nullptr}};
  if (job_.token_ids) json["token_ids"] = choice.token_ids;
  return to_text(json);
}

std::string Reply::completion_choice(Choice& choice, size_t index) const {
  Json json = {{"index", index},
               {"text", choice.text},
               {"logprobs", nullptr},
               {"finish_reason", choice.finish_reason},
               {"stop_reason", choice.stop_reason}};
  if (job_.token_ids) {
    json["prompt_token_ids"] = prompt_of(index).tokens;
    json["token_ids"] = choice.token_ids;
  }
  if (choice.completion_logprobs) json["logprobs"] = choice.completion_logprobs->take();
  return to_text(json);
}

std::string Reply::ids_member(const char* name, const std::vector<TokenId>& ids) const {
  return fmt::format(",\"{}\":{}", name, to_text(Json(ids)));
}

std::string Reply::usage(const Choice* only) const {
  int64_t prompt = 0, completion = 0, cached = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    if (only != nullptr && &choice != only) continue;
    completion += choice.completion_tokens;
    if (only == nullptr && i % static_cast<size_t>(job_.n) != 0) continue;  // a prompt counts once
    prompt += static_cast<int64_t>(prompt_of(i).tokens.size());
    cached += choice.cached_tokens;
  }
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      prompt, completion, prompt + completion, cached);
}

void Reply::send_body() {
  over_ = true;
  std::string body = head_ + "\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) body += ',';
    body += job_.chat ? chat_choice(choices_[i], i) : completion_choice(choices_[i], i);
  }
  body += "],\"usage\":" + usage();
  if (job_.token_ids && job_.chat) body += ids_member("prompt_token_ids", job_.prompts[0].tokens);
  body += "}";
  exchange_->respond({.body = std::move(body), .headers = headers_});
}

}  // namespace octavo
