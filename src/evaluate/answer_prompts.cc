#include "evaluate/answer_prompts.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>

namespace octavo {
namespace {

constexpr size_t kAtOnce = 16;  // requests in flight

// Finished answers on their way from the engine's thread to the caller's.
struct Inbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::pair<size_t, GeneratedAnswer>> finished;
  std::vector<GeneratedAnswer> growing;  // touched by the engine's thread alone

  void add(size_t i, const TokenEvent& event) {
    GeneratedAnswer& answer = growing[i];
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const TokenLogprob& token : event.logprobs) answer.logprobs.push_back(token.logprob);
    answer.text += event.text;
    if (!event.finished) return;
    answer.finish_reason = event.finish_reason;
    answer.prompt_tokens = event.prompt_tokens;
    if (event.error) answer.error = event.error->what;
    const std::lock_guard lock(mutex);
    finished.emplace_back(i, std::move(answer));
    arrived.notify_one();
  }
  std::pair<size_t, GeneratedAnswer> next() {
    std::unique_lock lock(mutex);
    arrived.wait(lock, [&] { return !finished.empty(); });
    auto item = std::move(finished.front());
    finished.pop_front();
    return item;
  }
};

// Room for the longest requests that can be in flight together.
int64_t kv_tokens(const Model& model, const std::vector<GenerationRequest>& requests) {
  std::vector<int64_t> lengths;
  for (const GenerationRequest& request : requests) {
    const int64_t length = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
    lengths.push_back(std::min(length, model.config().context_length()) + 2 * kPageTokens);
  }
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  lengths.resize(std::min(lengths.size(), kAtOnce));
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{2 * kPageTokens});
}

}  // namespace

Result<void> answer_prompts(Model& model, std::vector<GenerationRequest> requests,
                            const std::function<Result<void>(size_t, GeneratedAnswer)>& done) {
  Inbox inbox;
  inbox.growing.resize(requests.size());
  ServingEngine engine(model, {.kv_cache_tokens = kv_tokens(model, requests)});
  size_t next = 0, in_flight = 0;
  while (next < requests.size() || in_flight > 0) {
    if (next < requests.size() && in_flight < kAtOnce) {
      const size_t i = next++;
      const auto id =
          engine.submit(std::move(requests[i]), [&inbox, i](const TokenEvent& event) { inbox.add(i, event); });
      if (id) {
        ++in_flight;
      } else {
        OCTAVO_TRY(done(i, {.finish_reason = "error", .error = id.error().what}));
      }
      continue;
    }
    auto [i, answer] = inbox.next();
    --in_flight;
    OCTAVO_TRY(done(i, std::move(answer)));
  }
  return {};
}

}  // namespace octavo
