// The engine's thread: messages in, one step, events out.
#include <algorithm>
#include <chrono>
#include <exception>

#include "engine/serving_state.h"

namespace octavo {

void ServingEngine::State::loop() {
  while (take_messages()) {
    if (!scheduler.empty()) run_step();
  }
}

// Waits for work; if none comes for a moment, uses the time until it does.
void ServingEngine::State::measure_when_idle() {
  {
    std::unique_lock lock(mutex);
    if (wake.wait_for(lock, std::chrono::milliseconds(100), [&] { return has_messages(); })) return;
  }
  const auto roofline = measure_roofline(model.pool(), model.decoder().weight_blocks(), [&] {
    const std::lock_guard lock(mutex);
    return has_messages();
  });
  if (!roofline) return;
  std::string bound;
  peak_gflops = compute_peak(model, *roofline, bound);
  const std::lock_guard lock(mutex);
  stats.roofline = roofline;
}

bool ServingEngine::State::take_messages() {
  std::vector<Incoming> incoming;
  std::vector<RequestId> gone;
  bool end = false;
  if (scheduler.empty() && options.measure_roofline && !stats.roofline) measure_when_idle();
  {
    std::unique_lock lock(mutex);
    if (scheduler.empty()) wake.wait(lock, [&] { return has_messages(); });
    incoming.swap(inbox);
    gone.swap(cancelled);
    end = stopping;
  }
  for (Incoming& message : incoming) start(std::move(message.request), std::move(message.prompt));
  touched.clear();
  for (const RequestId id : gone) {
    const auto place = active.find(id);
    if (place == active.end() || place->second->answer.finished()) continue;
    place->second->answer.finish("abort");
    touched.push_back(place->second.get());
  }
  if (end)
    for (auto& [id, request] : active) {
      if (request->answer.finished()) continue;
      request->answer.finish("abort");
      touched.push_back(request.get());
    }
  if (!touched.empty()) report(touched);
  return !end;
}

void ServingEngine::State::start(std::unique_ptr<ActiveRequest> request, std::vector<TokenId> prompt) {
  scheduler.add(request->id, std::move(prompt), std::move(request->cache_salt), request->score_prompt);
  active.emplace(request->id, std::move(request));
}

void ServingEngine::State::run_step() {
  const Step step = scheduler.next();
  const auto begin = std::chrono::steady_clock::now();
  for (const Share& share : step.shares)
    if (ActiveRequest& request = *active.at(share.id); request.queue_seconds < 0)
      request.queue_seconds = std::chrono::duration<double>(begin - request.submitted).count();
  // Whatever goes wrong in here ends the requests of this step, not the process.
  try {
    const bool highest = runner.run(step, wants_highest(step) ? vocab_limit : 0);
    scheduler.complete(step);
    make_jobs(step);
    do_jobs(highest);
    take_results(step);
  } catch (const std::exception& exception) {
    fail_step(step, exception.what());
  }
  count(step, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  touched.clear();
  for (const Share& share : step.shares) touched.push_back(active.at(share.id).get());
  report(touched);
}

void ServingEngine::State::make_jobs(const Step& step) {
  jobs.clear();
  int64_t row = 0;
  for (const Share& share : step.shares) {
    ActiveRequest& request = *active.at(share.id);
    const std::span<const TokenId> tokens = scheduler.tokens(share.id);
    for (int64_t i = share.first_logits; i < share.num_rows; ++i, ++row) {
      const int64_t next = share.position + i + 1;
      if (request.score_prompt && next < request.num_prompt)
        jobs.push_back({.request = &request, .row = row, .target = tokens[static_cast<size_t>(next)]});
      else if (share.samples && i + 1 == share.num_rows && request.max_tokens > 0)
        jobs.push_back({.request = &request, .row = row});
    }
    if (share.samples && request.allow) fill_allowed(request);
  }
}

void ServingEngine::State::fill_allowed(ActiveRequest& request) {
  request.allowed.assign(model.tokenizer().vocab_size(), false);
  try {
    request.allow(request.answer.generated(), request.allowed);
  } catch (const std::exception& exception) {
    return fail_request(request, {.what = "the filter of a request failed", .found = exception.what()});
  }
  if (request.allowed.size() != model.tokenizer().vocab_size())
    fail_request(request, {.what = "the filter of a request changed the size of the vocabulary"});
}

// Whether every row of logits serves one purpose: to choose the token of its highest logit.
bool ServingEngine::State::wants_highest(const Step& step) const {
  return std::all_of(step.shares.begin(), step.shares.end(), [&](const Share& share) {
    const ActiveRequest& request = *active.at(share.id);
    return share.first_logits >= share.num_rows ||
           (!request.score_prompt && request.num_logprobs < 0 && !request.allow && request.sampler.wants_highest() &&
            request.answer.banned().empty());
  });
}

void ServingEngine::State::do_jobs(bool highest) {
  if (highest) {
    for (LogitsJob& job : jobs) job.chosen = runner.best(job.row);
    return;
  }
  const auto limit = static_cast<int64_t>(model.tokenizer().vocab_size());
  model.pool().parallel_items(static_cast<int64_t>(jobs.size()), [&](int64_t index, int worker) {
    LogitsJob& job = jobs[static_cast<size_t>(index)];
    const ActiveRequest& request = *job.request;
    if (request.answer.finished()) return;
    const std::span<const float> logits = runner.logits(job.row);
    if (!job.target) {
      job.chosen = request.sampler.choose(logits, static_cast<int64_t>(request.answer.generated().size()),
                                          request.answer.banned(), request.allow ? &request.allowed : nullptr,
                                          scratch[static_cast<size_t>(worker)]);
      if (!job.chosen || request.num_logprobs < 0) return;
    }
    job.logprob = token_logprob(logits, job.target ? *job.target : *job.chosen, request.num_logprobs, limit);
  });
}

void ServingEngine::State::take_results(const Step& step) {
  for (LogitsJob& job : jobs) {
    ActiveRequest& request = *job.request;
    if (request.answer.finished()) continue;
    if (job.target) {
      request.prompt_logprobs.push_back(*std::move(job.logprob));
      continue;
    }
    if (!job.chosen) {
      fail_request(request, {.what = request.allow ? "no token may follow" : "the model's logits are not finite",
                             .where = request.allow ? "the filter of the request" : "logits"});
      continue;
    }
    request.sampler.count(*job.chosen);
    request.answer.push(*job.chosen, std::move(job.logprob));
    if (!request.answer.finished()) scheduler.append(request.id, *job.chosen);
  }
  for (const Share& share : step.shares)
    if (ActiveRequest& request = *active.at(share.id); share.samples && request.max_tokens == 0)
      request.answer.finish("length");
}

void ServingEngine::State::fail_request(ActiveRequest& request, Error error) {
  if (request.answer.finished()) return;
  request.error = std::move(error);
  request.answer.finish("error");
}

void ServingEngine::State::fail_step(const Step& step, const char* what) {
  for (const Share& share : step.shares)
    fail_request(*active.at(share.id), {.what = "a step of the engine failed", .found = what});
}

void ServingEngine::State::count(const Step& step, double seconds) {
  const std::lock_guard lock(mutex);
  ++stats.steps;
  StepCost spent = step_cost(cost, step);
  spent.bytes += runner.head_bytes();
  StepTotals& totals = step.prefill_rows > 0 ? stats.prefill : stats.decode;
  ++totals.steps;
  totals.rows += step.num_rows;
  totals.seconds += seconds;
  totals.bytes += spent.bytes;
  totals.operations += spent.operations;
  if (stats.roofline) {
    totals.bounded_seconds += seconds;
    totals.bound_seconds +=
        std::max(spent.bytes * 1e-9 / stats.roofline->read_gb_s, spent.operations * 1e-9 / peak_gflops);
  }
  for (const Share& share : step.shares) {
    ActiveRequest& request = *active.at(share.id);
    request.cached_tokens = scheduler.cached_tokens(share.id);
    if (share.samples && !request.prompt_counted) {
      request.prompt_counted = true;
      stats.prompt_tokens += static_cast<uint64_t>(request.num_prompt);
    }
  }
}

void ServingEngine::State::report(std::span<ActiveRequest* const> requests) {
  std::vector<TokenEvent> events;
  events.reserve(requests.size());
  for (ActiveRequest* request : requests) {
    AnswerPiece piece = request->answer.take();
    TokenEvent& event = events.emplace_back();
    event.id = request->id;
    event.tokens = std::move(piece.tokens);
    event.text = std::move(piece.text);
    event.logprobs = std::move(piece.logprobs);
    event.end_logprob = std::move(piece.end);
    event.finished = request->answer.finished();
    event.prompt_tokens = request->num_prompt;
    event.completion_tokens = request->answer.num_tokens();
    event.cached_tokens = request->cached_tokens;
    event.queue_seconds = request->queue_seconds;
    if (event.finished) {
      event.finish_reason = request->answer.finish_reason();
      event.stop_match = request->answer.stop_match();
      event.end_token = request->answer.end_token();
      event.error = std::move(request->error);
      scheduler.remove(request->id);
    }
    const bool speaks = event.finished || !event.tokens.empty() || !event.text.empty();
    if (speaks && request->score_prompt) {
      event.prompt_logprobs = std::move(request->prompt_logprobs);
      request->score_prompt = false;
    }
  }
  int64_t num_finished = 0;
  {
    const std::lock_guard lock(mutex);
    for (const TokenEvent& event : events) {
      stats.generation_tokens += event.tokens.size();
      if (!event.finished) continue;
      ++num_finished;
      ++stats.finished[event.finish_reason];
      if (event.finish_reason == "abort") ++stats.aborted;
    }
    stats.running = scheduler.num_running();
    stats.pages_total = cache.num_pages();
    stats.pages_used = cache.num_held();
    stats.pages_cached = cache.num_cached();
    stats.preemptions = scheduler.stats().preemptions;
    stats.prefix_queries = scheduler.stats().prefix_queries;
    stats.prefix_hits = scheduler.stats().prefix_hits;
  }
  for (size_t i = 0; i < events.size(); ++i) {
    const bool finished = events[i].finished;
    const bool accepted = deliver(*requests[i], events[i]);
    if (finished) {
      active.erase(requests[i]->id);
    } else if (!accepted) {
      const std::lock_guard lock(mutex);
      cancelled.push_back(requests[i]->id);
    }
  }
  if (num_finished == 0) return;
  const std::lock_guard lock(mutex);
  in_flight -= num_finished;
  if (in_flight == 0) idle.notify_all();
}

// False: the sink failed, nobody listens any more.
bool ServingEngine::State::deliver(ActiveRequest& request, const TokenEvent& event) {
  if (!request.sink) return true;
  if (!event.finished && event.tokens.empty() && event.text.empty()) return true;
  try {
    request.sink(event);
    return true;
  } catch (...) {
    request.sink = nullptr;
    return false;
  }
}

}  // namespace octavo
