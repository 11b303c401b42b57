// ModelRunner: computes a Step with the model.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/model.h"
#include "engine/step.h"

namespace octavo {

class ModelRunner {
 public:
  // The model's thread pool and step memory are the runner's while run() works.
  ModelRunner(Model& model, std::span<const PagedKvLayer> kv) : model_(&model), kv_(kv) {}

  // Writes the KV pages of the step's shares, and computes the logits they want. highest_below: they want the id of the
  // highest logit alone, of ids below this (0: logits). True: the model has a faster way to it; best() has these ids,
  // and there are no logits().
  bool run(const Step& step, int64_t highest_below = 0);

  // Id of the highest logit of row i, the lowest among equals; none where that logit is not finite.
  std::optional<TokenId> best(int64_t i) const {
    const TokenId id = best_[static_cast<size_t>(i)];
    return id < 0 ? std::nullopt : std::optional(id);
  }
  // Bytes of the head's weights that the last step read.
  double head_bytes() const { return head_bytes_; }

  // Row i of the logits that the last step wanted, in the order of its shares: [vocab_size].
  std::span<const float> logits(int64_t i) const {
    return {logits_.data() + i * stride_, static_cast<size_t>(model_->config().vocab_size)};
  }

 private:
  Model* model_;
  std::span<const PagedKvLayer> kv_;
  Batch gather(const Step& step);  // views of the members below

  int64_t stride_ = 0;
  double head_bytes_ = 0;
  AlignedArray<float> logits_;
  std::vector<TokenId> tokens_;
  std::vector<KvSequence> sequences_;
  std::vector<int64_t> logit_rows_;
  std::vector<TokenId> best_;
};

}  // namespace octavo
