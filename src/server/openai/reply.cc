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

namespace {

// An output format that cannot be followed is the client's fault, everything else is ours.
ApiError engine_error(const Error& error) {
  if (!error.found.starts_with(GrammarTooComplex::kWhat)) return api_error_of(error, 500);
  return {.message = error.found, .code = "invalid_schema"};
}

}  // namespace

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
    if (job_.logprobs && !job_.chat) choice.completion_logprobs.emplace(engine_.tokenizer(), job_.tokens_as_ids);
    if (job_.tool_choice == ToolChoice::kAuto || job_.tool_choice == ToolChoice::kRequired)
      choice.tools.emplace(job_.tool_names, job_.one_call);
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
  const double now = std::chrono::duration<double>(at - job_.arrived).count();
  const bool first = choice.times.tokens == 0 && choice.prompt_tokens == 0;
  if (first && (!event.tokens.empty() || event.finish_reason == "stop" || event.finish_reason == "length")) {
    choice.prompt_tokens = event.prompt_tokens;
    if (index % static_cast<size_t>(job_.n) == 0) metrics_.prompt_tokens(event.prompt_tokens);
  }
  metrics_.tokens(choice.times, now, static_cast<int64_t>(event.tokens.size()));
  choice.completion_tokens = event.completion_tokens;
  choice.cached_tokens = event.cached_tokens;
  if (!event.finished) return;
  const double queued = event.queue_seconds < 0 ? -1.0 : job_.wait_seconds + event.queue_seconds;
  metrics_.finished(choice.times, now, event.finish_reason, event.prompt_tokens, queued);
}

void Reply::on_event(size_t index, const TokenEvent& event, Clock::time_point at) {
  Choice& choice = choices_[index];
  if (choice.finished) return;
  count(choice, index, event, at);
  choice.finished = event.finished;
  if (event.finished) --unfinished_;
  if (over_) return;
  if (event.finished && event.finish_reason == "abort") return abandon(shutting_down());
  if (event.finished && event.finish_reason == "error")
    return abandon(engine_error(event.error.value_or(Error{.what = "the engine failed"})));
  Piece piece = piece_of(choice, index, event);
  if (job_.stream) {
    stream_piece(choice, index, std::move(piece));
    if (unfinished_ == 0) end_stream();
    return;
  }
  choice.text += piece.text;
  choice.token_ids.insert(choice.token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
  choice.logprobs.insert(choice.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  if (unfinished_ == 0) send_body();
}

Reply::Piece Reply::piece_of(Choice& choice, size_t index, const TokenEvent& event) {
  Piece piece{.text = event.text,
              .token_ids = job_.token_ids ? event.tokens : std::vector<TokenId>(),
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
  if (event.stop_match)
    choice.stop_reason = *event.stop_match;
  else if (event.end_token && (job_.shared.ignore_eos || !engine_.is_end(*event.end_token)))
    choice.stop_reason = *event.end_token;
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
