// Cosines and sines of the rotary embedding, computed as far as positions have come.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "checkpoint/model_config.h"

namespace octavo {

class RopeCache {
 public:
  explicit RopeCache(const ModelConfig& config);

  // [positions][head_dim]: cos [head_dim / 2], then sin [head_dim / 2], for at least `positions` positions. The angle
  // is the FP32 product position x inverse frequency, as in transformers.
  const float* table(int64_t positions);

 private:
  RopeTable frequencies_;
  int64_t head_dim_, computed_ = 0;
  AlignedArray<float> values_;
};

}  // namespace octavo
