// Rotary position keys of config.json: rope_scaling with rope_theta, or transformers 5 rope_parameters.
#pragma once

#include "checkpoint/model_config.h"
#include "checkpoint/model_config_keys.h"

namespace octavo {

// What holds where a key is absent.
struct RopeDefaults {
  int64_t max_position = 0;
  double theta = 0;
};

// Scaling types that Octavo does not compute (longrope, ...) are an error that names the type and the known ones.
Result<RopeConfig> read_rope(const ConfigKeys& keys, const RopeDefaults& defaults);

}  // namespace octavo
