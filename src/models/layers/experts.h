// Which experts the tokens of a step pass, and with what weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "parallel/thread_pool.h"

namespace octavo {

// Formula (transformers' Mixtral and Qwen3-MoE): p = softmax over all of a row's scores, in FP32; the per_token largest
// are chosen, of equals the first; normalize: their p are divided by their sum. Its bits: docs/semantics.md.
class Routing {
 public:
  struct Row {
    int32_t row;
    float weight;
  };

  // scores: [rows, experts.count]. A row whose scores are not finite has weights that are not, either.
  void assign(const float* scores, int64_t rows, const ExpertsConfig& experts, ThreadPool& pool);

  // The rows that pass an expert, ascending.
  std::span<const Row> rows_of(int64_t expert) const;
  int64_t num_experts() const { return static_cast<int64_t>(begin_.size()) - 1; }

 private:
  std::vector<int32_t> chosen_;  // [rows, per_token]
  std::vector<float> weights_;
  std::vector<size_t> begin_;  // of each expert's rows, and the end
  std::vector<Row> rows_;
};

}  // namespace octavo
