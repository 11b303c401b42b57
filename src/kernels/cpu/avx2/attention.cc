// Attention for AVX2 with FP32 FMA: bit-identical with the reference.
#include "kernels/cpu/common/attention_tile_simd.h"

namespace octavo {
namespace {

// Sixteen registers are too few to decode and multiply at once.
void attend_block(const AttentionShape& shape, const KeyBlock& block, const KeyBlock*, int rows,
                  const AttentionMemory& memory, const SoftmaxState& state) {
  attend_block_as_tile<Fma>(shape, block, rows, memory, state);
}

}  // namespace
}  // namespace octavo

namespace octavo::avx2 {

extern const AttentionRows kAttentionRows;
const AttentionRows kAttentionRows{load_queries<Fma>, attend_block, load_block<Fma>, attend_tile<Fma>, merge, finish};

}  // namespace octavo::avx2
