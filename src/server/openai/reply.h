// Reply: answers one request: submits its choices, turns their events into JSON or a stream, keeps the books.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/exchange.h"
#include "server/metrics.h"
#include "server/openai/job.h"
#include "server/openai/logprobs_json.h"
#include "server/openai/tool_calls.h"

namespace octavo {

using Clock = std::chrono::steady_clock;

// All but submit's sinks on the network thread.
class Reply : public std::enable_shared_from_this<Reply> {
 public:
  // Takes an event from the engine's thread to the network thread, in order.
  using Deliver = std::function<void(std::shared_ptr<Reply> reply, size_t choice, const TokenEvent& event)>;

  Reply(Job job, std::shared_ptr<Exchange> exchange, HttpHeaders headers, TextEngine& engine, Metrics& metrics);
  // Submits every choice, or answers with the error.
  void start(const Deliver& deliver);
  void on_event(size_t choice, const TokenEvent& event, Clock::time_point at);
  // Gives up: the error is all that the client still gets. Not after its end.
  void abandon(const ApiError& error);

 private:
  struct Choice {
    RequestId id = 0;
    bool submitted = false, begun = false, finished = false;
    std::string text;  // content, or the arguments of a forced call
    std::string finish_reason;
    std::vector<TokenLogprob> logprobs;
    std::optional<CompletionLogprobs> completion_logprobs;
    std::vector<TokenId> token_ids;  // where they are told
    Json stop_reason;                // the stop string or stop token that ended it, else null
    std::optional<ToolCallReader> tools;
    size_t calls_told = 0;
    std::string call_id;  // kNamed
    int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
    SequenceTimes times;
  };
  const Prompt& prompt_of(size_t choice) const { return job_.prompts[choice / static_cast<size_t>(job_.n)]; }
  GenerationRequest request_for(size_t choice) const;
  void refuse_all(const ApiError& error, HttpHeaders more = {});
  void cancel_all();
  void count(Choice& choice, size_t index, const TokenEvent& event, Clock::time_point at);

  // The text, log-probabilities and calls that an event brings.
  struct Piece {
    std::string text;
    std::vector<TokenId> token_ids;
    std::vector<TokenLogprob> logprobs;
    std::vector<ToolCall> calls;
    bool first = false, last = false;
  };
  Piece piece_of(Choice& choice, size_t index, const TokenEvent& event);
  void end_choice(Choice& choice, const TokenEvent& event);

  // reply_stream.cc: server-sent events.
  void stream_piece(Choice& choice, size_t index, Piece piece);
  void stream_chat(Choice& choice, size_t index, Piece piece);
  void stream_completion(Choice& choice, size_t index, const Piece& piece);
  // `inside`: further members of the choice; `outside`: of the chunk.
  void send_chunk(size_t index, const std::string& inside, const std::string& logprobs, const Choice& choice, bool last,
                  const std::string& outside = {});
  void end_stream();

  // reply_body.cc: one JSON body.
  void send_body();
  std::string chat_choice(Choice& choice, size_t index) const;
  std::string completion_choice(Choice& choice, size_t index) const;
  std::string ids_member(const char* name, const std::vector<TokenId>& ids) const;
  std::string usage(const Choice* only = nullptr) const;
  Json call_json(const ToolCall& call, const std::string& id) const;

  Job job_;
  std::shared_ptr<Exchange> exchange_;
  HttpHeaders headers_;
  TextEngine& engine_;
  Metrics& metrics_;
  std::string id_, head_;  // head_: the members that all chunks share
  int64_t created_ = 0;
  std::vector<Choice> choices_;
  size_t unfinished_ = 0;
  bool over_ = false;  // answered, failed or abandoned
};

}  // namespace octavo
