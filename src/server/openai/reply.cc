#include "server/openai/reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "server/openai/json_text.h"
#include "server/openai/random_id.h"

namespace octavo {

std::string random_id(std::string_view prefix) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, random(), random() >> 32);
}

Reply::Reply(Job job, std::shared_ptr<Exchange> exchange, HttpHeaders headers, TextEngine& engine, Metrics& metrics)
    : job_(std::move(job)),
      exchange_(std::move(exchange)),
      headers_(std::move(headers)),
      engine_(engine),
      metrics_(metrics),
      id_(random_id(job_.chat ? "chatcmpl-" : "cmpl-")),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      choices_(job_.num_choices()),
      unfinished_(choices_.size()) {
  const std::string object = job_.chat ? "chat.completion" : "text_completion";
  head_ = fmt::format(R"({{"id":"{}","object":"{}{}","created":{},"model":{},)", id_, object,
                      job_.chat && job_.stream ? ".chunk" : "", created_, json_string(job_.model));
  for (Choice& choice : choices_) {
    if (job_.logprobs && !job_.chat) choice.completion_logprobs.emplace(engine_.tokenizer());
    if (job_.tool_choice == ToolChoice::kAuto || job_.tool_choice == ToolChoice::kRequired)
      choice.tools.emplace(job_.tool_names);
    if (job_.tool_choice == ToolChoice::kNamed) choice.call_id = random_id("call_");
  }
}

GenerationRequest Reply::request_for(size_t choice) const {
  const Prompt& prompt = prompt_of(choice);
  GenerationRequest request = job_.shared;
  request.prompt = prompt.tokens;
  const int64_t room = engine_.max_model_len() - static_cast<int64_t>(prompt.tokens.size());
  request.max_tokens = job_.prompt_only ? 0 : std::min(request.max_tokens, room);
  request.min_tokens = std::min(request.min_tokens, request.max_tokens);
  const auto sample = static_cast<int64_t>(choice) % job_.n;
  if (request.sampling.seed) request.sampling.seed = sample_seed(*request.sampling.seed, sample);
  if (job_.constraint != nullptr) request.allow = job_.constraint->filter();
  return request;
}

void Reply::start(const Deliver& deliver) {
  submitted_ = Clock::now();
  const auto self = shared_from_this();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Result<RequestId> id =
        engine_.submit(request_for(i), [self, i, deliver](const TokenEvent& event) { deliver(self, i, event); });
    if (!id) {
      cancel_all();
      if (id.error().what != "queue is full") {
        ApiError error = api_error_of(id.error(), 400);
        error.param = id.error().where;
        return refuse_all(error);
      }
      return refuse_all({.status = 429,
                         .message = "The server is at its limit of waiting requests; try again later",
                         .code = "rate_limit_exceeded",
                         .type = "rate_limit_error"},
                        {{"Retry-After", "1"}});
    }
    choices_[i].id = *id;
    choices_[i].submitted = true;
  }
  exchange_->on_gone([weak = weak_from_this()] {
    const auto reply = weak.lock();
    if (reply == nullptr) return;
    reply->over_ = true;
    reply->cancel_all();
  });
  if (job_.stream) exchange_->start_stream(headers_);
}

void Reply::refuse_all(const ApiError& error, HttpHeaders more) {
  over_ = true;
  metrics_.rejected();
  more.insert(more.end(), headers_.begin(), headers_.end());
  exchange_->respond({.status = error.status, .body = error_body(error), .headers = std::move(more)});
}

void Reply::cancel_all() {
  for (const Choice& choice : choices_)
    if (choice.submitted && !choice.finished) engine_.cancel(choice.id);
}

void Reply::count(Choice& choice, size_t index, const TokenEvent& event, Clock::time_point at) {
  const double now = std::chrono::duration<double>(at - submitted_).count();
  const bool first = choice.times.tokens == 0 && choice.prompt_tokens == 0;
  if (first && (!event.tokens.empty() || event.finish_reason == "stop" || event.finish_reason == "length")) {
    choice.prompt_tokens = event.prompt_tokens;
    if (index % static_cast<size_t>(job_.n) == 0) metrics_.prompt_tokens(event.prompt_tokens);
  }
  metrics_.tokens(choice.times, now, static_cast<int64_t>(event.tokens.size()));
  choice.completion_tokens = event.completion_tokens;
  choice.cached_tokens = event.cached_tokens;
  if (event.finished)
    metrics_.finished(choice.times, now, event.finish_reason, event.prompt_tokens, event.queue_seconds);
}

void Reply::on_event(size_t index, const TokenEvent& event, Clock::time_point at) {
  Choice& choice = choices_[index];
  if (choice.finished) return;
  count(choice, index, event, at);
  choice.finished = event.finished;
  if (event.finished) --unfinished_;
  if (over_) return;
  if (event.finished && event.finish_reason == "abort")
    return abandon({.status = 503, .message = "The server is shutting down", .type = "server_error"});
  if (event.finished && event.finish_reason == "error")
    return abandon(api_error_of(event.error.value_or(Error{.what = "the engine failed"}), 500));
  Piece piece = piece_of(choice, index, event);
  if (job_.stream) {
    stream_piece(choice, index, std::move(piece));
    if (unfinished_ == 0) end_stream();
    return;
  }
  choice.text += piece.text;
  choice.logprobs.insert(choice.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  if (unfinished_ == 0) send_body();
}

Reply::Piece Reply::piece_of(Choice& choice, size_t index, const TokenEvent& event) {
  Piece piece{.text = event.text,
              .logprobs = event.logprobs,
              .first = !std::exchange(choice.begun, true),
              .last = event.finished};
  if (event.stop_match && job_.include_stop) piece.text += *event.stop_match;
  if (piece.first && job_.echo) {
    const Prompt& prompt = prompt_of(index);
    piece.text = echo_text(prompt.tokens, prompt.added, engine_.tokenizer()) + piece.text;
    if (choice.completion_logprobs) choice.completion_logprobs->add_prompt(event.prompt_logprobs, prompt.added);
  }
  if (choice.completion_logprobs) choice.completion_logprobs->add(event.logprobs);
  // Who scores a prompt cuts off one sampled token: it is always there, even where it is the end.
  if (choice.completion_logprobs && job_.echo && event.end_logprob)
    choice.completion_logprobs->add({&*event.end_logprob, 1});
  if (choice.tools) {
    piece.text = choice.tools->push(piece.text);
    if (event.finished) piece.text += choice.tools->finish();
    const auto& calls = choice.tools->calls();
    piece.calls.assign(calls.begin() + static_cast<ptrdiff_t>(choice.calls_told), calls.end());
    choice.calls_told = job_.stream ? calls.size() : 0;
  }
  if (event.finished) end_choice(choice, event);
  return piece;
}

void Reply::end_choice(Choice& choice, const TokenEvent& event) {
  choice.finish_reason = event.finish_reason;
  if (choice.tools && !choice.tools->calls().empty() && event.finish_reason == "stop")
    choice.finish_reason = "tool_calls";
}

void Reply::abandon(const ApiError& error) {
  if (std::exchange(over_, true)) return;
  cancel_all();
  if (job_.stream) {
    exchange_->send("data: " + error_body(error) + "\n\ndata: [DONE]\n\n");
    exchange_->finish();
    return;
  }
  exchange_->respond({.status = error.status, .body = error_body(error), .headers = headers_});
}

}  // namespace octavo
