// The scale of a group of weights that makes its rounding error smallest: below the one that its largest magnitude
// asks for, the group's ends are clipped and the rest is rounded more finely. Pays for elements of few bits.
#pragma once

#include <span>

#include "formats/tensor.h"
#include "parallel/thread_pool.h"

namespace octavo {

// Whether scales of this format are searched: groups within a row, elements of four bits.
bool searches_scales(const TensorFormat& format);

// importance: per value, what its squared error counts. The range of the values is shrunk in kScaleSteps steps to
// kSmallestRange of it; of equal errors the wider range wins. Finite values only; a group of zeros gets scale 1.
inline constexpr int kScaleSteps = 20;
inline constexpr float kSmallestRange = 0.5f;
ScaleAndZero search_scale(std::span<const float> values, std::span<const float> importance, const TensorFormat& format,
                          OuterScale outer);

// round_matrix() with searched scales where the format has such. importance: [cols].
Matrix round_matrix_searched(std::span<const float> values, int64_t rows, int64_t cols,
                             std::span<const float> importance, const TensorFormat& format, float shared_amax,
                             ThreadPool& pool);

}  // namespace octavo
