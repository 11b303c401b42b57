// The tensors that a dialect stores for a quantized weight, beyond FP32 scales beside the codes as they are.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "formats/tensor.h"
#include "precision/plan.h"

namespace octavo {

// Whether the dialect stores this format through the functions below: packed codes, scales of other types than FP32,
// zero points, outer scales.
bool stores_packed(std::string_view dialect, const TensorFormat& weight);

std::vector<TensorToWrite> weight_tensors(std::string_view dialect, const LinearModule& module,
                                          const TensorFormat& weight);
// The bytes of weight_tensors(), in the same order. `weight` is the whole matrix.
std::vector<std::vector<std::byte>> pack_weight(std::string_view dialect, const LinearModule& module,
                                                const MatrixView& weight);

}  // namespace octavo
