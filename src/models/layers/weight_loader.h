// From a stored weight to its packed form: as stored where the plan says so, else through FP32 slabs and quantized now.
#pragma once

#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "kernels/linear.h"

namespace octavo {

// Packs a module's weight at row `row` of `packed`, in slabs of bounded size. Returns the relative RMS error of what
// was rounded on the way (0 where the stored bytes are used). A NaN or an infinity in a weight that is to be quantized
// is an error naming the tensor.
Result<double> load_weight(const Checkpoint& checkpoint, const StoredLinear& stored, PackedLinear& packed, int64_t row,
                           ThreadPool& pool);

// Rows [begin, end) of a stored weight as FP32 values, scales applied: [end - begin, cols].
Result<void> read_stored_rows(const Checkpoint& checkpoint, const StoredLinear& stored, int64_t begin, int64_t end,
                              std::span<float> values);

}  // namespace octavo
