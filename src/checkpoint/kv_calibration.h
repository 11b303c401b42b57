// octavo_kv.json: what calibration found out about a model's keys and values, and the KV cache that its folder asks
// for. Docs: docs/kv_cache.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "precision/kv_format.h"

namespace octavo {

inline constexpr std::string_view kKvCalibrationName = "octavo_kv.json";

struct KvCalibration {
  struct Layer {
    std::string k, v;  // parse_kv_side's text; empty: the folder asks for nothing
    std::vector<float> k_range,
        v_range;                      // [num_kv_heads]: the magnitude that a stored scale maps to the largest element
    std::vector<float> k_min, k_max;  // [num_kv_heads x head_dim], rotated keys
    float temperature = 1;
  };
  std::string kv_cache;   // as it was asked for, for the report; may be empty
  std::string estimator;  // of the ranges
  int64_t tokens = 0;     // that were looked at
  std::vector<Layer> layers;

  // The stored scales of one side of a layer, per KV head: of `format`'s element, one for all with
  // options.tensor_scale; 1 with options.channels.
  std::vector<float> scales(size_t layer, bool key, const TensorFormat& format, const KvOptions& options) const;
  // Scales and zero points of the layer's key channels, [num_kv_heads x head_dim]: the range between k_min and k_max
  // fills the element's.
  struct Channels {
    std::vector<float> scales, zeros;
  };
  Channels channels(size_t layer, const TensorFormat& format) const;
};

// Error: not JSON, another version, another model's shape, ranges that are not finite or negative, an unknown format.
Result<KvCalibration> read_kv_calibration(const std::filesystem::path& path, const ModelConfig& config);
std::string kv_calibration_text(const KvCalibration& calibration, const ModelConfig& config);

}  // namespace octavo
