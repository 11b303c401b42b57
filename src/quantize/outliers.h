// Outlier channels of a group's input: which they are, and weights without them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace octavo {

// The `count` channels of the largest amax (of equals, the first), ascending.
std::vector<int32_t> choose_outliers(std::span<const float> amax, int64_t count);

// Moves these columns of a [rows, cols] weight out of it, rounded to BF16; zeros stay.
StoredOutliers take_outlier_columns(std::span<float> weight, int64_t cols, const std::vector<int32_t>& channels);

}  // namespace octavo
