#include "quantize/damage.h"

#include <fmt/format.h>

namespace octavo {

Error damaged_weight(const TensorEntry& entry, int64_t row, int64_t col) {
  return {.what = "a weight that is to be quantized is NaN or infinite",
          .where = fmt::format("{}: tensor {}, row {}, column {}", entry.file.string(), entry.name, row, col),
          .remedy = "the checkpoint is damaged: fetch it again, or leave this module out with --ignore"};
}

Error damaged_activations(std::string_view place, const CalibrationSet& samples, int64_t sample) {
  return {.what = "activations are NaN or infinite",
          .where = fmt::format("{}, {}", place, samples.describe_sample(sample)),
          .remedy = "check that the model answers sensibly in bf16, and leave this text out"};
}

}  // namespace octavo
