// ModelRunner: computes a Step with the model.
#pragma once

#include <span>
#include <vector>

#include "engine/model.h"
#include "engine/step.h"

namespace octavo {

class ModelRunner {
 public:
  // The model's thread pool and step memory are the runner's while run() works.
  ModelRunner(Model& model, std::span<const PagedKvLayer> kv) : model_(&model), kv_(kv) {}

  // Writes the KV pages of the step's shares, and computes the logits they want.
  void run(const Step& step);

  // Row i of the logits that the last step wanted, in the order of its shares: [vocab_size].
  std::span<const float> logits(int64_t i) const {
    return {logits_.data() + i * stride_, static_cast<size_t>(model_->config().vocab_size)};
  }

 private:
  Model* model_;
  std::span<const PagedKvLayer> kv_;
  int64_t stride_ = 0;
  AlignedArray<float> logits_;
  std::vector<TokenId> tokens_;
  std::vector<KvSequence> sequences_;
  std::vector<int64_t> logit_rows_;
};

}  // namespace octavo
