#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace octavo {
namespace {

int64_t pages_for(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

int64_t num_pages(const PageTable& table) {
  return static_cast<int64_t>(table.pages.size());
}

}  // namespace

Scheduler::Scheduler(PrefixCache& cache, const SchedulerOptions& options) : cache_(&cache), options_(options) {
  OCTAVO_CHECK(options.max_num_batched_tokens > 0 && options.max_num_seqs > 0 && options.max_score_rows > 0,
               "budget {}, {} requests, {} score rows", options.max_num_batched_tokens, options.max_num_seqs,
               options.max_score_rows);
  // Every running request gets a row in every step: none starves behind the others.
  options_.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

void Scheduler::add(RequestId id, std::vector<TokenId> prompt, std::string salt, bool score_prompt) {
  OCTAVO_CHECK(!prompt.empty(), "request {} has no tokens", id);
  auto request = std::make_unique<Request>();
  request->id = id;
  request->arrival = arrivals_++;
  request->salt = std::move(salt);
  request->num_prompt = static_cast<int64_t>(prompt.size());
  request->tokens = std::move(prompt);
  if (score_prompt && request->num_prompt > 1) request->score_from = 0;
  waiting_.push_back(request.get());
  const bool is_new = requests_.emplace(id, std::move(request)).second;
  OCTAVO_CHECK(is_new, "request {} exists", id);
}

Step Scheduler::next() {
  Step step;
  Budget budget{options_.max_num_batched_tokens, options_.max_score_rows};
  schedule_running(true, step, budget);
  schedule_running(false, step, budget);
  start_waiting(step, budget);
  for (Share& share : step.shares) {
    // Tables and tokens are at rest from here on.
    const Request& request = *requests_.at(share.id);
    share.tokens =
        std::span(request.tokens).subspan(static_cast<size_t>(share.position), static_cast<size_t>(share.num_rows));
    share.pages = request.table.pages;
    share.samples = share.position + share.num_rows == request.known();
    const int64_t wanted = std::min(request.score_from, request.known() - 1);
    share.first_logits = std::clamp(wanted - share.position, int64_t{0}, share.num_rows);
    step.num_rows += share.num_rows;
    step.num_logits += share.num_rows - share.first_logits;
    if (share.num_rows > 1) step.prefill_rows += share.num_rows;
  }
  return step;
}

void Scheduler::schedule_running(bool decode, Step& step, Budget& budget) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Request& request = *running_[i];
    if (request.gap() == 0 || (request.gap() == 1) != decode) continue;
    if (!decode) count_hits(request, match_prefix(request));  // others may have computed it meanwhile
    const int64_t rows = chunk(request, budget);
    if (rows == 0) continue;
    // Whoever goes arrived later and stands behind i, or is the request itself.
    if (make_room(request, rows, step, budget)) add_share(request, rows, step, budget);
  }
}

void Scheduler::start_waiting(Step& step, Budget& budget) {
  while (!waiting_.empty() && budget.rows > 0 && num_running() < options_.max_num_seqs) {
    Request& request = *waiting_.front();
    const int64_t hits = match_prefix(request);
    const int64_t rows = chunk(request, budget);
    if (rows == 0 || !may_start(request) || !cache_->grow(pages_for(request.computed + rows), request.table)) {
      cache_->release(request.table);
      request.computed = 0;
      return;
    }
    waiting_.pop_front();
    running_.push_back(&request);
    request.running = true;
    if (!request.preempted) stats_.prefix_queries += static_cast<uint64_t>(request.known());
    count_hits(request, hits);
    add_share(request, rows, step, budget);
  }
}

// Starting a request that would soon be stopped, or soon stop others, is work for nothing: there must be room for all
// of its tokens, beside what running ones still have to read and a page each for what they will write.
bool Scheduler::may_start(const Request& request) const {
  if (running_.empty()) return true;
  int64_t needed = pages_for(request.known() + 1) - num_pages(request.table);
  for (const Request* other : running_)
    needed += std::max<int64_t>(1, pages_for(other->known() + 1) - num_pages(other->table));
  return needed <= cache_->num_available();
}

int64_t Scheduler::chunk(const Request& request, const Budget& budget) const {
  int64_t rows = std::min(request.gap(), budget.rows);
  // Rows before score_from want no logits; there are none of them in practice, since scoring starts at 0.
  if (request.score_from < request.known()) rows = std::min(rows, budget.score_rows);
  return rows;
}

void Scheduler::add_share(Request& request, int64_t rows, Step& step, Budget& budget) {
  budget.rows -= rows;
  if (request.score_from < request.known()) budget.score_rows -= rows;
  step.shares.push_back({.id = request.id, .position = request.computed, .num_rows = rows});
}

bool Scheduler::make_room(Request& request, int64_t rows, Step& step, Budget& budget) {
  while (!cache_->grow(pages_for(request.computed + rows), request.table)) {
    Request& last = *running_.back();
    preempt(last, step, budget);
    if (&last == &request) return false;
  }
  return true;
}

void Scheduler::preempt(Request& request, Step& step, Budget& budget) {
  OCTAVO_CHECK(&request == running_.back() && running_.size() > 1, "request {} needs more pages than there are",
               request.id);
  const auto share =
      std::find_if(step.shares.begin(), step.shares.end(), [&](const Share& s) { return s.id == request.id; });
  if (share != step.shares.end()) {
    budget.rows += share->num_rows;
    if (request.score_from < request.known()) budget.score_rows += share->num_rows;
    step.shares.erase(share);
  }
  cache_->release(request.table);
  request.computed = 0;
  request.running = false;
  request.preempted = true;
  running_.pop_back();
  waiting_.push_front(&request);
  ++stats_.preemptions;
}

int64_t Scheduler::match_prefix(Request& request) {
  const PageTable& table = request.table;
  if (table.num_shared * kPageTokens != request.computed || num_pages(table) != table.num_shared) return 0;
  const int64_t hits = cache_->match(request.tokens, request.cacheable(), request.salt, request.table) * kPageTokens;
  request.computed += hits;
  return hits;
}

void Scheduler::count_hits(Request& request, int64_t hits) {
  if (request.preempted) return;  // what it finds is its own work
  request.cached += hits;
  stats_.prefix_hits += static_cast<uint64_t>(hits);
}

void Scheduler::complete(const Step& step) {
  for (const Share& share : step.shares) {
    const auto place = requests_.find(share.id);
    if (place == requests_.end()) continue;  // removed meanwhile
    Request& request = *place->second;
    request.computed = share.position + share.num_rows;
    if (request.score_from < request.computed) {
      request.score_from = request.computed;
      if (request.score_from >= request.num_prompt - 1) request.score_from = std::numeric_limits<int64_t>::max();
    }
    cache_->publish(request.tokens, request.computed, request.salt, request.table);
  }
}

void Scheduler::append(RequestId id, TokenId token) {
  Request& request = *requests_.at(id);
  OCTAVO_CHECK(request.gap() == 0, "request {} has {} tokens to compute", id, request.gap());
  request.tokens.push_back(token);
}

void Scheduler::remove(RequestId id) {
  const auto place = requests_.find(id);
  if (place == requests_.end()) return;
  Request* request = place->second.get();
  cache_->release(request->table);
  if (request->running)
    running_.erase(std::find(running_.begin(), running_.end(), request));
  else
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), request));
  requests_.erase(place);
}

int64_t Scheduler::cached_tokens(RequestId id) const {
  const auto place = requests_.find(id);
  return place == requests_.end() ? 0 : place->second->cached;
}

std::span<const TokenId> Scheduler::tokens(RequestId id) const {
  return requests_.at(id)->tokens;
}

}  // namespace octavo
