// What a quantization will take, before it is started.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "quantize/quantize_checkpoint.h"

namespace octavo {

struct QuantizeEstimate {
  int64_t memory_bytes = 0;   // resident at the peak
  int64_t disk_bytes = 0;     // free space needed, the output and all that is temporary
  int64_t output_bytes = 0;   // of the output's tensors
  int64_t spilled_bytes = 0;  // activations that pass --memory-limit
  int64_t samples = 0, tokens = 0;
  double seconds = 0;
};

// Checks everything that the quantization checks before it starts. Times come from the first layer and two of the
// samples, run in a temporary folder beside `out` that is gone afterwards.
Result<QuantizeEstimate> estimate_quantization(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                               const QuantizeOptions& options);

}  // namespace octavo
