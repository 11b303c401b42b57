// Producers: operations on the residual stream, each fused with the quantization of what it hands on, and the
// embedding. All are exact in the same sense: reference, avx2, avx512 and avx512_bf16 agree bit for bit, because the
// order is fixed:
//   Sums and maxima over a row run in 16 lanes: lane l takes elements l, l + 16, l + 32, ... in order; then the lanes
//   are folded as lane[l] + lane[l + 8], then + 4, + 2, + 1. RMSNorm: mean = (sum of fma(x, x, lane)) / n; r = 1 /
//   sqrt(mean + eps); y = (x x r) x weight. Quantization of y: per group scale = scale_from_amax(max |y|)
//   (formats/tensor.h), inverse = 1 / scale, code = encode(y x inverse); a group whose amax is not finite gets scale
//   NaN and codes 0. Stored scale: the same with the given scale. float32: codes are y itself. bf16: y rounded to
//   nearest even. exp: exp2 of kernels/math.h, on every row.
//   Outlier channels of the output (kernels/activation.h): y goes to them as it is, and is 0 in what is quantized.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/paged_kv.h"
#include "formats/tensor.h"
#include "kernels/activation.h"
#include "kernels/isa.h"
#include "parallel/thread_pool.h"

namespace octavo {

struct RmsNormCall {
  const float* input = nullptr;  // [rows, cols]
  int64_t input_stride = 0;
  const float* weight = nullptr;  // [cols]
  float eps = 0;
  Activation output;
};

// output = quantized input.
struct QuantizeCall {
  const float* input = nullptr;
  int64_t input_stride = 0;
  Activation output;
};

// output = quantized silu(gate) x up, silu(g) = g / (1 + exp(-g)); gate = input[:, 0:cols], up = input[:, cols:2 cols].
// `hadamard`: a power of two that divides the columns; the products pass hadamard_blocks() (kernels/hadamard.h) in
// blocks of this many before they are quantized. 0: they do not.
struct SiluGateCall {
  const float* input = nullptr;  // [rows, 2 x output.cols]
  int64_t input_stride = 0;
  int64_t hadamard = 0;
  Activation output;
};

// Per-head RMSNorm of q and k (where weights are given), rotary embedding (rotate-half: pairs (i, i + head_dim / 2)),
// then k and v are quantized and written into their pages. q is left rotated in place, in FP32. Row layout: [q heads |
// k heads | v heads].
//   rotated: a' = fma(a, cos, -(b x sin)), b' = fma(b, cos, a x sin)
//   KV scale: one per (token, head), as for activations; or the layer's stored scale.
struct RopeKvCall {
  float* qkv = nullptr;
  int64_t stride = 0, rows = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 0;
  const float* cos_sin = nullptr;  // [positions][head_dim]: cos [head_dim / 2], then sin [head_dim / 2]
  const KvSequence* sequences = nullptr;
  int64_t num_sequences = 0;
  PagedKvLayer kv;
};

// One instruction set's producers: a row of producers.inc. Each call uses the pool by itself.
struct ProducerKernels {
  std::string_view name;
  Isa isa;
  void (*rms_norm)(const RmsNormCall& call, ThreadPool& pool);
  void (*quantize)(const QuantizeCall& call, ThreadPool& pool);
  void (*silu_gate)(const SiluGateCall& call, ThreadPool& pool);
  void (*rope_kv)(const RopeKvCall& call, ThreadPool& pool);
};

std::span<const ProducerKernels* const> producer_kernels();
const ProducerKernels& choose_producers(Isa isa);

// x[r, :] = table[ids[r], :] widened to FP32. table: plain BF16, F16 or F32 [vocab, cols]. ids are in range.
void embed(const TensorView& table, std::span<const int32_t> ids, float* output, int64_t output_stride);

}  // namespace octavo
