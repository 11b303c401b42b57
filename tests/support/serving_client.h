// A client of ServingEngine for tests: collects the events of its requests.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "engine/serving.h"

namespace octavo {

// All that the events of one request said, put together.
struct Collected {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<std::string> pieces;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  std::string finish_reason;
  std::optional<std::string> stop_match;
  std::optional<Error> error;
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  int events = 0, finishes = 0;
};

class ServingClient {
 public:
  explicit ServingClient(ServingEngine& engine) : engine_(&engine) {}

  // Starts a request; on_event, if set, sees each event on the engine's thread first.
  RequestId start(GenerationRequest request, EventSink on_event = {}) {
    auto slot = std::make_shared<Slot>();
    const auto id = engine_->submit(std::move(request), [slot, on_event](const TokenEvent& event) {
      if (on_event) on_event(event);
      const std::lock_guard lock(slot->mutex);
      add(event, slot->got);
      if (event.finished) slot->done.notify_all();
    });
    if (!id) throw std::runtime_error(id.error().message());
    slots_[*id] = slot;
    return *id;
  }
  Collected wait(RequestId id) {
    const auto slot = slots_.at(id);
    std::unique_lock lock(slot->mutex);
    slot->done.wait(lock, [&] { return slot->got.finishes > 0; });
    return slot->got;
  }
  Collected ask(GenerationRequest request) { return wait(start(std::move(request))); }

 private:
  struct Slot {
    std::mutex mutex;
    std::condition_variable done;
    Collected got;
  };
  template <class T>
  static void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  static void add(const TokenEvent& event, Collected& got) {
    append(got.tokens, event.tokens);
    append(got.logprobs, event.logprobs);
    append(got.prompt_logprobs, event.prompt_logprobs);
    got.text += event.text;
    if (!event.text.empty()) got.pieces.push_back(event.text);
    got.finish_reason = event.finish_reason;
    got.stop_match = event.stop_match;
    got.error = event.error;
    got.prompt_tokens = event.prompt_tokens;
    got.completion_tokens = event.completion_tokens;
    got.cached_tokens = event.cached_tokens;
    ++got.events;
    got.finishes += event.finished;
  }

  ServingEngine* engine_;
  std::map<RequestId, std::shared_ptr<Slot>> slots_;
};

}  // namespace octavo
