// Server-sent events: the role first, then text, then exactly one finish_reason per choice, the usage if asked for, and
// [DONE].
#include <fmt/format.h>

#include "server/openai/json_text.h"
#include "server/openai/random_id.h"
#include "server/openai/reply.h"

namespace octavo {

void Reply::stream_piece(Choice& choice, size_t index, Piece piece) {
  if (job_.chat)
    stream_chat(choice, index, std::move(piece));
  else
    stream_completion(choice, index, piece);
}

void Reply::send_chunk(size_t index, const std::string& inside, const std::string& logprobs, const Choice& choice,
                       bool last, const std::string& outside) {
  std::string chunk = "data: " + head_;
  chunk += fmt::format(R"("choices":[{{"index":{},{},"logprobs":{},"finish_reason":{}{}}}])", index, inside, logprobs,
                       last ? json_string(choice.finish_reason) : "null",
                       last ? ",\"stop_reason\":" + to_text(choice.stop_reason) : "");
  chunk += outside;
  if (job_.include_usage) chunk += ",\"usage\":" + (job_.continuous_usage ? usage(&choice) : "null");
  chunk += "}\n\n";
  exchange_->send(chunk);
}

void Reply::stream_chat(Choice& choice, size_t index, Piece piece) {
  const std::string none = "null";
  const std::string ids = job_.token_ids ? ids_member("token_ids", piece.token_ids) : "";
  if (piece.first)
    send_chunk(index, R"("delta":{"role":"assistant","content":""})", none, choice, false,
               job_.token_ids ? ids_member("prompt_token_ids", job_.prompts[0].tokens) : "");
  std::string logprobs = none;
  if (job_.logprobs && !piece.logprobs.empty())
    logprobs = fmt::format(R"({{"content":{},"refusal":null}})",
                           to_text(chat_logprobs(piece.logprobs, engine_.tokenizer(), job_.tokens_as_ids)));
  if (job_.tool_choice == ToolChoice::kNamed) {
    Json call = {{"index", 0}};
    if (piece.first) call.update({{"id", choice.call_id}, {"type", "function"}});
    if (piece.first) call["function"]["name"] = job_.tool_names.front();
    call["function"]["arguments"] = piece.text;
    if (piece.first || !piece.text.empty())
      send_chunk(index, fmt::format(R"("delta":{{"tool_calls":[{}]}}{})", to_text(call), ids), logprobs, choice, false);
  } else if (!piece.text.empty() || logprobs != none || !piece.token_ids.empty()) {
    send_chunk(index, fmt::format(R"("delta":{{"content":{}}}{})", json_string(piece.text), ids), logprobs, choice,
               false);
  }
  size_t number = choice.calls_told - piece.calls.size();
  for (const ToolCall& call : piece.calls) {
    Json json = {{"index", number++}};
    json.update(call_json(call, random_id("call_")));
    send_chunk(index, fmt::format(R"("delta":{{"tool_calls":[{}]}})", to_text(json)), none, choice, false);
  }
  if (piece.last) send_chunk(index, R"("delta":{})", none, choice, true);
}

void Reply::stream_completion(Choice& choice, size_t index, const Piece& piece) {
  std::string logprobs = "null";
  if (choice.completion_logprobs) {
    const Json json = choice.completion_logprobs->take();
    if (!json["tokens"].empty()) logprobs = to_text(json);
  }
  std::string ids;
  if (job_.token_ids) ids = ids_member("token_ids", piece.token_ids);
  if (job_.token_ids && piece.first) ids += ids_member("prompt_token_ids", prompt_of(index).tokens);
  if (!piece.text.empty() || logprobs != "null" || !piece.token_ids.empty() || (piece.first && job_.token_ids))
    send_chunk(index, "\"text\":" + json_string(piece.text) + ids, logprobs, choice, false);
  if (piece.last) send_chunk(index, R"("text":"")", "null", choice, true);
}

void Reply::end_stream() {
  over_ = true;
  if (job_.include_usage) exchange_->send("data: " + head_ + "\"choices\":[],\"usage\":" + usage() + "}\n\n");
  exchange_->send("data: [DONE]\n\n");
  exchange_->finish();
}

}  // namespace octavo
