// Sequence: one request's tokens and KV pages, fed forward in chunks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/model.h"
#include "kv_cache/page_pool.h"

namespace octavo {

// Rows of a prefill that go through the model at once. Results do not depend on it.
inline constexpr int64_t kPrefillChunk = 512;

class Sequence {
 public:
  Sequence(Model& model, PagePool& kv) : model_(&model), kv_(&kv) {}
  ~Sequence() { kv_->release(pages_); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Appends tokens and computes them, `chunk` rows at a time. Logits of the last token: logits(). Error: ids outside
  // the vocabulary, a context longer than the model's or than the KV cache.
  Result<void> feed(std::span<const TokenId> tokens, int64_t chunk = kPrefillChunk,
                    const Decoder::HiddenHook& hidden = {});
  // The same with the logits of every token: visit(first, rows, count, stride) for runs of consecutive new tokens,
  // first counted from the first token fed.
  using LogitsVisitor = FunctionRef<void(int64_t first, const float* rows, int64_t count, int64_t stride)>;
  Result<void> feed_all_logits(std::span<const TokenId> tokens, LogitsVisitor visit, int64_t chunk = 128,
                               const Decoder::HiddenHook& hidden = {});

  // The same for callers that want the id of the highest logit alone, of ids below `limit` (the lowest among equals;
  // none where that logit is not finite), by the model's faster way to it where it has one: then there are no logits().
  Result<std::optional<TokenId>> feed_highest(std::span<const TokenId> tokens, int64_t limit,
                                              int64_t chunk = kPrefillChunk);

  // Forgets everything past the first `length` tokens.
  void truncate(int64_t length);

  // Of the last token fed.
  std::span<const float> logits() const {
    return {logits_.data() + last_row_ * logits_stride_, static_cast<size_t>(model_->config().vocab_size)};
  }
  std::span<const TokenId> tokens() const { return tokens_; }
  std::span<const int32_t> pages() const { return pages_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  Result<void> check(std::span<const TokenId> tokens) const;
  // Pages for tokens that follow; then what the decoder takes: logits of the last row, or of all.
  Batch place(std::span<const TokenId> tokens, bool all_logits);
  void forward(std::span<const TokenId> tokens, bool all_logits, const Decoder::HiddenHook& hidden);

  Model* model_;
  PagePool* kv_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> pages_;
  AlignedArray<float> logits_;  // of the last forward: [1 or chunk rows, stride]
  int64_t logits_stride_ = 0, last_row_ = 0;
  std::vector<int64_t> logit_rows_;
  KvSequence placed_ = {};
};

}  // namespace octavo
