// Attention for AVX2 with FP32 FMA: bit-identical with the reference.
#include "kernels/cpu/common/attention_tile_simd.h"

namespace octavo {
namespace {

// Decode takes the way of prefill, with a tile of one token: sixteen registers are too few to decode and multiply at
// once.
void attend_block(const AttentionShape& shape, const KeyBlock& block, const KeyBlock*, int rows,
                  const AttentionMemory& memory, const SoftmaxState& state) {
  load_block<Fma>(shape, block, memory);
  const AttentionTile tile{.rows = rows,
                           .group = rows,
                           .first_position = block.end - 1,
                           .window = block.begin > 0 ? block.end - block.begin : 0,
                           .block_start = 0,
                           .fresh = true};
  attend_tile<Fma>(shape, tile, memory, state);
}

}  // namespace
}  // namespace octavo

namespace octavo::avx2 {

extern const AttentionRows kAttentionRows;
const AttentionRows kAttentionRows{load_queries<Fma>, attend_block, load_block<Fma>, attend_tile<Fma>, merge, finish};

}  // namespace octavo::avx2
