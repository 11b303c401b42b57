// The inside of ServingEngine: what its thread owns, and what it shares with the callers under a mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/cost.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/serving.h"

namespace octavo {

// A request on the engine's thread.
struct ActiveRequest {
  ActiveRequest(RequestId request_id, GenerationRequest request, EventSink event_sink, AnswerRules rules,
                const Tokenizer& tokenizer);

  RequestId id;
  EventSink sink;
  std::string cache_salt;
  int64_t num_prompt, max_tokens;
  int num_logprobs;
  Sampler sampler;
  Answer answer;
  std::function<void(std::span<const TokenId>, std::vector<bool>&)> allow;
  std::vector<bool> allowed;
  bool score_prompt;                          // until the first event has carried prompt_logprobs
  std::vector<TokenLogprob> prompt_logprobs;  // of the prompt tokens scored so far
  bool prompt_counted = false;
  int64_t cached_tokens = 0;
  std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  double queue_seconds = -1;  // until its first step; negative before
  std::optional<Error> error;
};

// One row of logits and what is wanted of it.
struct LogitsJob {
  ActiveRequest* request = nullptr;
  int64_t row = 0;
  std::optional<TokenId> target;  // score this token; none: sample the next one
  std::optional<TokenId> chosen;
  std::optional<TokenLogprob> logprob;
};

struct ServingEngine::State {
  State(Model& model, const ServingOptions& options);
  ~State();

  // serving.cc: any thread.
  Result<void> check_request(const GenerationRequest& request) const;
  AnswerRules answer_rules(const GenerationRequest& request) const;
  int64_t capacity() const;  // tokens that one request can have

  // serving_loop.cc: the engine's thread.
  void loop();
  bool take_messages();  // waits for work; false: time to end
  bool has_messages() const { return stopping || !inbox.empty() || !cancelled.empty(); }  // under the mutex
  void measure_when_idle();
  void start(std::unique_ptr<ActiveRequest> request, std::vector<TokenId> prompt);
  void run_step();
  void make_jobs(const Step& step);
  void fill_allowed(ActiveRequest& request);
  bool wants_highest(const Step& step) const;
  void do_jobs(bool highest);  // highest: the runner has found the tokens
  void take_results(const Step& step);
  void fail_step(const Step& step, const char* what);
  void fail_request(ActiveRequest& request, Error error);
  // Takes finished requests out of the scheduler, brings the counters up to date, then tells the sinks.
  void report(std::span<ActiveRequest* const> requests);
  void count(const Step& step, double seconds);
  bool deliver(ActiveRequest& request, const TokenEvent& event);

  Model& model;
  const ServingOptions options;
  PagePool pool;
  PrefixCache cache;
  Scheduler scheduler;
  ModelRunner runner;
  const TokenCost cost;
  double peak_gflops = 0;     // with stats.roofline
  const int64_t vocab_limit;  // ids below are tokens of the tokenizer and of the model
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> active;
  std::vector<LogitsJob> jobs;
  std::vector<SamplerScratch> scratch;  // per thread of the pool
  std::vector<ActiveRequest*> touched;

  struct Incoming {
    std::unique_ptr<ActiveRequest> request;
    std::vector<TokenId> prompt;
  };
  mutable std::mutex mutex;
  std::condition_variable wake, idle;
  std::vector<Incoming> inbox;
  std::vector<RequestId> cancelled;
  bool stopping = false;
  RequestId next_id = 1;
  int64_t in_flight = 0;  // submitted, last event not yet delivered
  EngineStats stats;

  std::thread thread;
};

}  // namespace octavo
