// Scheduler: decides what each step computes. Without phases: a request has known tokens (prompt and answer so far) and
// computed ones; a step closes the gaps within a token budget. No threads, no clock, no model.
//
// Order of arrival rules: rows that decode go first, then running requests that still read (in chunks), then waiting
// ones. When pages run out, the request that arrived last gives up its pages and waits again, at the head of the queue;
// the oldest is never stopped, so every request ends.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/step.h"
#include "kv_cache/prefix_cache.h"

namespace octavo {

struct SchedulerOptions {
  int64_t max_num_batched_tokens = 512;  // rows of a step
  int64_t max_num_seqs = 128;            // requests that run; at most one per row of the budget
  int64_t max_score_rows = 128;          // rows of a step whose logits are wanted beyond the last: bounds their memory
};

struct SchedulerStats {
  uint64_t preemptions = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens, of requests that start for the first time
};

class Scheduler {
 public:
  Scheduler(PrefixCache& cache, const SchedulerOptions& options);

  // A request at the end of the queue. `score_prompt`: logits of every prompt token are wanted. The caller sees to it
  // that the prompt and all tokens it will append fit into the page pool.
  void add(RequestId id, std::vector<TokenId> prompt, std::string salt, bool score_prompt);
  // The next step; empty when nothing is left to do. Preempts and starts requests.
  Step next();
  // The step was computed.
  void complete(const Step& step);
  // The request's next token, after a share that samples.
  void append(RequestId id, TokenId token);
  // Takes a request out, in any state; its pages are free (or cached) at once. Unknown ids are nothing.
  void remove(RequestId id);

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  bool empty() const { return requests_.empty(); }
  // Prompt tokens that came from the cache.
  int64_t cached_tokens(RequestId id) const;
  // All tokens of a request; the last may not be computed.
  std::span<const TokenId> tokens(RequestId id) const;
  const SchedulerStats& stats() const { return stats_; }

 private:
  struct Request {
    RequestId id = 0;
    uint64_t arrival = 0;
    std::string salt;
    std::vector<TokenId> tokens;
    int64_t num_prompt = 0, computed = 0;
    // Rows from this position on want logits, until the prompt is scored.
    int64_t score_from = std::numeric_limits<int64_t>::max();
    int64_t cached = 0;
    bool running = false, preempted = false;
    PageTable table;

    int64_t known() const { return static_cast<int64_t>(tokens.size()); }
    int64_t gap() const { return known() - computed; }
    // Tokens that may come from the cache: not the last one, whose logits are needed, nor those that want logits.
    int64_t cacheable() const { return std::min(known() - 1, score_from); }
  };
  struct Budget {
    int64_t rows, score_rows;
  };

  void schedule_running(bool decode, Step& step, Budget& budget);
  void start_waiting(Step& step, Budget& budget);
  bool may_start(const Request& request) const;
  int64_t chunk(const Request& request, const Budget& budget) const;
  void add_share(Request& request, int64_t rows, Step& step, Budget& budget);
  // Pages for `rows` more rows, at the cost of later arrivals. False: the request itself had to go.
  bool make_room(Request& request, int64_t rows, Step& step, Budget& budget);
  void preempt(Request& request, Step& step, Budget& budget);
  int64_t match_prefix(Request& request);  // tokens found
  void count_hits(Request& request, int64_t hits);

  PrefixCache* cache_;
  SchedulerOptions options_;
  SchedulerStats stats_;
  uint64_t arrivals_ = 0;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::deque<Request*> waiting_;   // in order of arrival
  std::vector<Request*> running_;  // in order of arrival
};

}  // namespace octavo
