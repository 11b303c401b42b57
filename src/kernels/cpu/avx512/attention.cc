// Attention for AVX-512 with FP32 FMA: bit-identical with the reference.
#include "kernels/cpu/common/attention_blocks_avx512.h"
#include "kernels/cpu/common/attention_tile_simd.h"

namespace octavo::avx512 {

extern const AttentionRows kAttentionRows;
const AttentionRows kAttentionRows{
    load_queries<Fma>, attend_block<Fma>, load_block<Fma>, attend_tile<Fma>, merge, finish};

}  // namespace octavo::avx512
