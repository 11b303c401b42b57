// ServingEngine: many requests at once over one model: continuous batching, paged KV cache, prefix cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/logprobs.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/step.h"
#include "kernels/roofline.h"

namespace octavo {

// What a client asks for, checked by check_request().
struct GenerationRequest {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 16;        // clamped to what the context holds
  int64_t min_tokens = 0;         // no end token and no stop string before this many
  std::vector<std::string> stop;  // stop strings; the text ends before the earliest match
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int num_logprobs = -1;         // -1: none; 0: of the chosen token; n: and the n most likely
  bool prompt_logprobs = false;  // also of the prompt's tokens (echo), with the same num_logprobs
  std::string cache_salt;        // requests share cached prefixes only with equal salts
  // A filter over the next token (constrained decoding): gets the tokens generated so far, marks what may follow, end
  // tokens included, in `allowed`, which comes with one false per token of the tokenizer. Null: everything.
  // Deterministic; called on the engine's thread.
  std::function<void(std::span<const TokenId> generated, std::vector<bool>& allowed)> allow;
};

// What happened to a request since the last event. Called on the engine's thread; must return quickly.
struct TokenEvent {
  RequestId id = 0;
  std::vector<TokenId> tokens;         // new tokens
  std::string text;                    // new text that is certain: valid UTF-8, no part of a possible stop string
  std::vector<TokenLogprob> logprobs;  // of `tokens`
  std::vector<TokenLogprob>
      prompt_logprobs;  // once, with the first event, when asked for; the first token has none (logprob NaN)
  std::optional<TokenLogprob> end_logprob;  // of the end token that ended it, which is none of `tokens`
  bool finished = false;
  std::string finish_reason;              // "stop", "length", "abort", "error"
  std::optional<std::string> stop_match;  // the stop string that ended it
  std::optional<TokenId> end_token;       // the token that ended it
  std::optional<Error> error;
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  double queue_seconds = -1;  // from submission to the first step that it was part of; negative: there was none
};
using EventSink = std::function<void(const TokenEvent&)>;

struct ServingOptions {
  int64_t kv_cache_tokens = 0;           // size of the page pool; 0: from memory_limit
  int64_t memory_limit = 0;              // bytes for weights + KV + scratch; 0: 80 % of what is free
  int64_t max_num_batched_tokens = 512;  // token budget of a step
  int64_t max_num_seqs = 128;            // requests in a step
  int64_t max_queue = 1024;              // waiting requests; more are refused
  bool prefix_cache = true;
  bool measure_roofline = false;  // in the first idle moment, for EngineStats::roofline
};

// What the steps of one kind took, since start.
struct StepTotals {
  uint64_t steps = 0;
  int64_t rows = 0;  // tokens computed
  double seconds = 0, bytes = 0, operations = 0;
  // Since the roofline is known: the least that bytes or operations take by it, step by step, and what they took.
  double bound_seconds = 0, bounded_seconds = 0;
};

struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t pages_total = 0, pages_used = 0, pages_cached = 0;
  uint64_t prompt_tokens = 0, generation_tokens = 0, preemptions = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  uint64_t steps = 0, aborted = 0;
  std::map<std::string, uint64_t> finished;  // by reason
  StepTotals prefill, decode;                // steps that read a prompt (and may decode beside it), and all others
  std::optional<Roofline> roofline;
  Decoder::KvClipped kv_clipped;
};

class ServingEngine {
 public:
  ServingEngine(Model& model, const ServingOptions& options);
  ~ServingEngine();  // cancels what is left

  // Errors name the field. Context rule: a prompt must leave room for one token; max_tokens is clamped.
  Result<void> check_request(const GenerationRequest& request) const;
  // Thread-safe. Error: a bad request, or a full queue (what == "queue is full").
  Result<RequestId> submit(GenerationRequest request, EventSink sink);
  // Thread-safe; pages are free after the step at work. The sink gets one last event ("abort").
  void cancel(RequestId id);
  EngineStats stats() const;
  int64_t kv_cache_tokens() const;
  // Waits until nothing runs or waits.
  void drain();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
