// Rows of the producers for AVX2.
#include "kernels/cpu/common/producer_rows_simd.h"

namespace octavo::avx2 {

extern const ProducerRows kProducerRows;
const ProducerRows kProducerRows{rms_norm, quantize, silu_gate, rope, store_k, store_v};

}  // namespace octavo::avx2
