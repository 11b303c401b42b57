// The readable definition of what a producer does with a row before it hands it on (kernels/producers.h).
#pragma once

#include <cstdint>

#include "formats/paged_kv.h"
#include "kernels/activation.h"

namespace octavo::reference {

// fold of 16 lanes: + 8, + 4, + 2, + 1
float fold_sum(const float lanes[16]);
float fold_max(const float lanes[16]);

// The dynamic scale of `count` values.
float group_scale(const float* values, int64_t count, const TensorFormat& format);

// Writes row r of the activation from its FP32 values.
void store_row(const float* row, const Activation& output, int64_t r);

// Writes one token's k and v (FP32, [head_dim]) of one head into slot `slot` of a page: with the scale that is given
// here, else the layer's stored one, else computed.
void store_kv(const float* k, const float* v, const PagedKvLayer& kv, int head, std::byte* page, int slot,
              const float* k_given = nullptr, const float* v_given = nullptr);

// Element values of slot `slot` (without scales).
float load_k(const KvPageLayout& layout, const std::byte* page, int slot, int dim);
float load_v(const KvPageLayout& layout, const std::byte* page, int slot, int dim);

}  // namespace octavo::reference
