// octavo_kv.json for models that nobody calibrated: ranges of the right shape, each channel and layer another one.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/random.h"
#include "checkpoint/kv_calibration.h"

namespace octavo {

inline KvCalibration made_up_kv_calibration(const ModelConfig& config) {
  KvCalibration calibration{.kv_cache = {}, .estimator = "amax", .tokens = 1000, .layers = {}};
  Random random(5);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    KvCalibration::Layer& layer = calibration.layers.emplace_back();
    for (int64_t h = 0; h < config.num_kv_heads; ++h) {
      layer.k_range.push_back(random.uniform(2.0f, 8.0f));
      layer.v_range.push_back(random.uniform(2.0f, 8.0f));
    }
    for (int64_t c = 0; c < config.kv_size(); ++c) {
      const float middle = random.uniform(-2.0f, 2.0f), half = random.uniform(0.5f, 4.0f);
      layer.k_min.push_back(middle - half);
      layer.k_max.push_back(middle + half);
    }
    layer.temperature = random.uniform(0.9f, 1.1f);
  }
  return calibration;
}

inline void write_kv_calibration(const std::filesystem::path& path, const KvCalibration& calibration,
                                 const ModelConfig& config) {
  ASSERT_TRUE(write_text_file(path, kv_calibration_text(calibration, config)).has_value());
}

}  // namespace octavo
