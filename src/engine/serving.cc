#include "engine/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/serving_memory.h"
#include "engine/serving_state.h"

namespace octavo {
namespace {

constexpr size_t kMostStops = 64, kLongestStop = 1024;
constexpr int kMostLogprobs = 20;

Result<void> check_id(const char* field, int64_t id, int64_t limit) {
  if (id >= 0 && id < limit) return {};
  return fail({.what = fmt::format("{} holds a token id outside the vocabulary", field),
               .where = field,
               .found = fmt::format("{}", id),
               .expected = fmt::format("0 to {}", limit - 1)});
}

Result<void> check_count(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail({.what = fmt::format("{} is out of range", field),
               .where = field,
               .found = fmt::format("{}", value),
               .expected = high == INT64_MAX ? fmt::format("at least {}", low) : fmt::format("{} to {}", low, high)});
}

Result<void> check_stops(const std::vector<std::string>& stops) {
  if (stops.size() > kMostStops)
    return fail({.what = "too many stop strings",
                 .where = "stop",
                 .found = fmt::format("{}", stops.size()),
                 .expected = fmt::format("at most {}", kMostStops)});
  for (const std::string& stop : stops)
    if (stop.empty() || stop.size() > kLongestStop)
      return fail({.what = stop.empty() ? "a stop string is empty" : "a stop string is too long",
                   .where = "stop",
                   .found = fmt::format("{} bytes", stop.size()),
                   .expected = fmt::format("1 to {} bytes", kLongestStop)});
  return {};
}

PagePool make_pool(const Model& model, const ServingOptions& options) {
  // Without a page nothing can be served; check_request then says so to every request.
  return model.make_kv_cache(plan_kv_cache_tokens(model, options).value_or(kPageTokens));
}

ServingOptions sane(ServingOptions options) {
  options.max_num_batched_tokens = std::max<int64_t>(1, options.max_num_batched_tokens);
  options.max_num_seqs = std::max<int64_t>(1, options.max_num_seqs);
  options.max_queue = std::max<int64_t>(1, options.max_queue);
  return options;
}

}  // namespace

ActiveRequest::ActiveRequest(RequestId request_id, GenerationRequest request, EventSink event_sink, AnswerRules rules,
                             const Tokenizer& tokenizer)
    : id(request_id),
      sink(std::move(event_sink)),
      cache_salt(std::move(request.cache_salt)),
      num_prompt(static_cast<int64_t>(request.prompt.size())),
      max_tokens(rules.max_tokens),
      num_logprobs(request.num_logprobs),
      sampler(request.sampling, static_cast<int64_t>(tokenizer.vocab_size()), request.prompt),
      answer(tokenizer, std::move(rules)),
      allow(std::move(request.allow)),
      score_prompt(request.prompt_logprobs) {
  if (score_prompt) prompt_logprobs.push_back({.token = request.prompt[0], .logprob = NAN});
}

ServingEngine::State::State(Model& m, const ServingOptions& o)
    : model(m),
      options(sane(o)),
      pool(make_pool(m, options)),
      cache(pool, options.prefix_cache),
      scheduler(cache,
                {.max_num_batched_tokens = options.max_num_batched_tokens, .max_num_seqs = options.max_num_seqs}),
      runner(m, pool.layers()),
      cost(token_cost(m)),
      vocab_limit(std::min<int64_t>(m.config().vocab_size, static_cast<int64_t>(m.tokenizer().vocab_size()))),
      scratch(static_cast<size_t>(m.pool().size())) {
  stats.pages_total = pool.num_pages();
  thread = std::thread([this] { loop(); });
}

ServingEngine::State::~State() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  wake.notify_all();
  thread.join();
}

int64_t ServingEngine::State::capacity() const {
  return std::min(model.config().context_length(), int64_t{pool.num_pages()} * kPageTokens);
}

Result<void> ServingEngine::State::check_request(const GenerationRequest& request) const {
  OCTAVO_TRY(check_count("max_tokens", request.max_tokens, 0, INT64_MAX));
  OCTAVO_TRY(check_count("min_tokens", request.min_tokens, 0, request.max_tokens));
  OCTAVO_TRY(check_count("logprobs", request.num_logprobs, -1, kMostLogprobs));
  OCTAVO_TRY(check_sampling(request.sampling, vocab_limit));
  OCTAVO_TRY(check_stops(request.stop));
  for (const TokenId id : request.stop_token_ids) OCTAVO_TRY(check_id("stop_token_ids", id, model.config().vocab_size));
  if (request.prompt.empty())
    return fail({.what = "the prompt is empty", .where = "prompt", .remedy = "give at least one token"});
  for (const TokenId id : request.prompt) OCTAVO_TRY(check_id("prompt", id, model.config().vocab_size));
  const auto length = static_cast<int64_t>(request.prompt.size()), most = capacity() - (request.max_tokens > 0 ? 1 : 0);
  if (length <= most) return {};
  const bool context = capacity() == model.config().context_length();
  return fail(
      {.what = context ? "the prompt is longer than the model's context" : "the prompt is longer than the KV cache",
       .where = "prompt",
       .found = fmt::format("{} tokens", length),
       .expected = fmt::format("at most {}, of {} for prompt and answer", most, capacity()),
       .remedy = context ? "shorten the prompt" : "shorten the prompt, or give the KV cache more memory"});
}

AnswerRules ServingEngine::State::answer_rules(const GenerationRequest& request) const {
  AnswerRules rules{
      .max_tokens = std::min(request.max_tokens, capacity() - static_cast<int64_t>(request.prompt.size())),
      .min_tokens = request.min_tokens,
      .end_tokens = request.stop_token_ids,
      .stop = request.stop};
  if (!request.ignore_eos)
    rules.end_tokens.insert(rules.end_tokens.end(), model.end_tokens().begin(), model.end_tokens().end());
  return rules;
}

ServingEngine::ServingEngine(Model& model, const ServingOptions& options)
    : state_(std::make_unique<State>(model, options)) {}
ServingEngine::~ServingEngine() = default;

Result<void> ServingEngine::check_request(const GenerationRequest& request) const {
  return state_->check_request(request);
}

Result<RequestId> ServingEngine::submit(GenerationRequest request, EventSink sink) {
  OCTAVO_TRY(state_->check_request(request));
  AnswerRules rules = state_->answer_rules(request);
  std::vector<TokenId> prompt = request.prompt;
  auto active = std::make_unique<ActiveRequest>(0, std::move(request), std::move(sink), std::move(rules),
                                                state_->model.tokenizer());
  const std::lock_guard lock(state_->mutex);
  const int64_t waiting = state_->in_flight - state_->stats.running;
  if (waiting >= state_->options.max_queue)
    return fail({.what = "queue is full",
                 .found = fmt::format("{} requests wait", waiting),
                 .expected = fmt::format("fewer than {}", state_->options.max_queue),
                 .remedy = "try again later"});
  const RequestId id = active->id = state_->next_id++;
  state_->inbox.push_back({std::move(active), std::move(prompt)});
  ++state_->in_flight;
  state_->wake.notify_one();
  return id;
}

void ServingEngine::cancel(RequestId id) {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled.push_back(id);
  state_->wake.notify_one();
}

EngineStats ServingEngine::stats() const {
  const std::lock_guard lock(state_->mutex);
  EngineStats stats = state_->stats;
  stats.waiting = std::max<int64_t>(0, state_->in_flight - stats.running);
  stats.kv_clipped = state_->model.decoder().kv_clipped();
  return stats;
}

int64_t ServingEngine::kv_cache_tokens() const {
  return int64_t{state_->pool.num_pages()} * kPageTokens;
}

void ServingEngine::drain() {
  std::unique_lock lock(state_->mutex);
  state_->idle.wait(lock, [&] { return state_->in_flight == 0; });
}

}  // namespace octavo
