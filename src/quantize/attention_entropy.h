// The entropy of attention under rounded keys, and the factor on the queries that restores it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/kv_calibration.h"
#include "parallel/thread_pool.h"

namespace octavo {

// How a layer's cache rounds its keys.
struct KeyRounding {
  TensorFormat format;
  KvOptions options;
  int64_t head_dim = 0;
  std::vector<float> scales;  // stored: per KV head
  KvCalibration::Channels channels;
};
// key [head_dim] of a token at `position`, in place: what attention reads of it. A rescaled cache is rounded with its
// first scale.
void round_key(const KeyRounding& rounding, int64_t position, int64_t kv_head, float* key);

class AttentionEntropy {
 public:
  // Scores of queries [positions][num_heads x head_dim] and keys [tokens][num_kv_heads x head_dim], causal.
  void add(const ModelConfig& config, std::span<const int64_t> positions, std::span<const float> queries,
           std::span<const float> keys, ThreadPool& pool);
  // Mean entropy, in nats, of softmax(temperature x scores) over the queries and heads.
  double mean(double temperature, ThreadPool& pool) const;
  // The temperature of this mean entropy, from 0.5 to 2: the nearest end where none has it.
  double temperature_for(double entropy, ThreadPool& pool) const;

 private:
  std::vector<std::vector<float>> rows_;  // of scores
};

}  // namespace octavo
