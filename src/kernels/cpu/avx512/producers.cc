// Rows of the producers for AVX-512.
#include "kernels/cpu/common/producer_rows_simd.h"

namespace octavo::avx512 {

extern const ProducerRows kProducerRows;
const ProducerRows kProducerRows{rms_norm, quantize, silu_gate, rope, store_k, store_v};

}  // namespace octavo::avx512
