// What a quantization will take, before it is started.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "quantize/quantize_checkpoint.h"

namespace octavo {

struct QuantizeEstimate {
  int64_t memory_bytes = 0;   // resident at the peak
  int64_t disk_bytes = 0;     // free space needed, for the output and all that is temporary
  int64_t output_bytes = 0;   // of the output's tensors
  int64_t spilled_bytes = 0;  // activations that pass --memory-limit
  int64_t samples = 0, tokens = 0;
  double calibration_seconds = 0, seconds = 0;  // of the passes over the samples, and in all
};

// Checks everything that the quantization checks before it starts: formats, tensors, text, other runs, free space.
// Times and memory come from a trial (quantizer.h): the first layer, the head, a few of the samples, some of what is
// copied, in a folder beside `out` that is gone afterwards. What an earlier run has finished is not subtracted from the
// time.
Result<QuantizeEstimate> estimate_quantization(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                               const QuantizeOptions& options);

}  // namespace octavo
