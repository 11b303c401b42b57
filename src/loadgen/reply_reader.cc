#include "loadgen/reply_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace octavo {
namespace {

constexpr size_t kMaxBody = size_t{64} << 10;  // of an error reply
constexpr size_t kMaxMessage = 300;

const Json* member(const Json* json, const char* key) {
  if (json == nullptr || !json->is_object()) return nullptr;
  const auto found = json->find(key);
  return found == json->end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json* json) {
  return json != nullptr && json->is_string() ? json->get<std::string>() : std::string();
}

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  if (text.size() > kMaxMessage) text = text.substr(0, kMaxMessage) + "...";
  return text;
}

// What an object says went wrong: {"error": {"message"}}, {"error": text}, {"message"}, {"detail"}. Empty: nothing.
std::string message_in(const Json& json) {
  const Json* error = member(&json, "error");
  for (const std::string& text : {text_of(member(error, "message")), text_of(error), text_of(member(&json, "message")),
                                  text_of(member(&json, "detail"))})
    if (!text.empty()) return text;
  return error == nullptr ? std::string() : error->dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Whether a choice carries some of the answer: text, reasoning or a tool call.
bool carries_text(const Json& choice) {
  if (!text_of(member(&choice, "text")).empty()) return true;
  const Json* delta = member(&choice, "delta");
  for (const char* key : {"content", "reasoning_content", "reasoning"})
    if (!text_of(member(delta, key)).empty()) return true;
  return member(delta, "tool_calls") != nullptr;
}

int64_t count_in(const Json& usage, const char* key) {
  const Json* json = member(&usage, key);
  return json != nullptr && json->is_number_integer() ? std::max<int64_t>(0, json->get<int64_t>()) : 0;
}

}  // namespace

std::string error_message_of(std::string_view body) {
  if (const Result<Json> json = parse_json(body, "reply"); json) {
    if (std::string message = message_in(*json); !message.empty()) return one_line(std::move(message));
  }
  return one_line(std::string(body));
}

void ReplyReader::fail(std::string reason) {
  if (record_.error.empty()) record_.error = std::move(reason);
}

void ReplyReader::begin(int status, std::string_view content_type) {
  status_ = status;
  content_type_ = content_type;
  stream_ = status == 200 && content_type.starts_with("text/event-stream");
}

bool ReplyReader::feed(std::string_view bytes, double now) {
  if (!stream_) {
    body_ += bytes.substr(0, kMaxBody - std::min(kMaxBody, body_.size()));
    return true;
  }
  for (const std::string& data : events_.feed(bytes)) read_event(data, now);
  if (events_.too_long()) fail(fmt::format("an event is longer than {} bytes", SseParser::kMaxEvent));
  return record_.error.empty();
}

void ReplyReader::read_event(const std::string& data, double now) {
  if (!record_.error.empty()) return;
  if (data == "[DONE]") {
    finished_ = true;
    return;
  }
  const Result<Json> chunk = parse_json(data, "chunk");
  if (!chunk) return fail(fmt::format("a chunk is not JSON: {}", one_line(data)));
  if (member(&*chunk, "error") != nullptr)
    return fail(fmt::format("the stream broke off with an error: {}", one_line(message_in(*chunk))));
  if (const Json* usage = member(&*chunk, "usage")) {
    record_.prompt_tokens = count_in(*usage, "prompt_tokens");
    record_.output_tokens = count_in(*usage, "completion_tokens");
    record_.counted_by_server = true;
  }
  const Json* choices = member(&*chunk, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;
  const Json& choice = choices->front();
  record_.last = now;
  if (member(&choice, "finish_reason") != nullptr) finished_ = true;
  if (!carries_text(choice)) return;
  ++text_chunks_;
  if (!started_)
    record_.first = now;
  else
    record_.gaps.push_back(now - last_text_);
  started_ = true;
  last_text_ = now;
}

void ReplyReader::read_error_body() {
  if (status_ != 200)
    fail(fmt::format("HTTP {}: {}", status_, error_message_of(body_)));
  else
    fail(fmt::format("the reply is not a stream of events but {}: {}",
                     content_type_.empty() ? "of no type" : content_type_, one_line(body_.substr(0, 100))));
}

void ReplyReader::end(std::string_view problem, double now) {
  if (status_ != 0 && !stream_) read_error_body();
  if (!finished_ && !problem.empty())
    fail(text_chunks_ > 0 ? fmt::format("{} in mid-stream", problem) : std::string(problem));
  if (!finished_) fail("the stream ended without finish_reason and [DONE]");
  if (!record_.error.empty()) {
    record_.last = now;
    return;
  }
  // An answer without visible text (special tokens only, or none): its one chunk stands for the first token.
  if (!started_) record_.first = record_.last != 0 ? record_.last : now;
  if (record_.last == 0) record_.last = now;
  if (!record_.counted_by_server) record_.output_tokens = text_chunks_;
}

}  // namespace octavo
