// The reference producers: scalar, in the order that kernels/producers.h states.
#include "kernels/producers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/hadamard.h"
#include "kernels/kv_write.h"
#include "kernels/math.h"
#include "kernels/reference/quantize_row.h"

namespace octavo::reference {
namespace {

// out = x normalised to RMS 1, times weight.
void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* out) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const float mean = fold_sum(lanes) / static_cast<float>(n);
  const float r = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] * r) * weight[i];
}

void rms_norm(const RmsNormCall& call, ThreadPool& pool) {
  const Activation& out = call.output;
  pool.parallel_for(out.rows, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> y(static_cast<size_t>(out.cols));
    for (int64_t r = begin; r < end; ++r) {
      rms_norm_row(call.input + r * call.input_stride, call.weight, call.eps, out.cols, y.data());
      store_row(y.data(), out, r);
    }
  });
}

void quantize(const QuantizeCall& call, ThreadPool& pool) {
  pool.parallel_for(call.output.rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) store_row(call.input + r * call.input_stride, call.output, r);
  });
}

void silu_gate(const SiluGateCall& call, ThreadPool& pool) {
  const int64_t cols = call.output.cols;
  pool.parallel_for(call.output.rows, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> y(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = call.input + r * call.input_stride;
      for (int64_t i = 0; i < cols; ++i) y[static_cast<size_t>(i)] = silu(gate[i]) * gate[cols + i];
      if (call.hadamard > 0) hadamard_blocks(y.data(), cols, call.hadamard);
      store_row(y.data(), call.output, r);
    }
  });
}

void rotate(float* x, const float* cos_sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float cosine = cos_sin[i], sine = cos_sin[half + i], a = x[i], b = x[half + i];
    x[i] = std::fma(a, cosine, -(b * sine));
    x[half + i] = std::fma(b, cosine, a * sine);
  }
}

// A token's row: normalised and rotated, then into the space of the cache.
void rope_row(const RopeKvCall& call, float* row, int64_t position) {
  const int hd = call.head_dim;
  const float* cos_sin = call.cos_sin + position * hd;
  float* k = row + call.num_heads * hd;
  for (int h = 0; h < call.num_heads; ++h) {
    if (call.q_norm != nullptr) rms_norm_row(row + h * hd, call.q_norm, call.eps, hd, row + h * hd);
    rotate(row + h * hd, cos_sin, hd);
  }
  for (int h = 0; h < call.num_kv_heads; ++h) {
    if (call.k_norm != nullptr) rms_norm_row(k + h * hd, call.k_norm, call.eps, hd, k + h * hd);
    rotate(k + h * hd, cos_sin, hd);
  }
  to_cache_space(call.kv, call.num_heads, row, k);
}

void rope_kv_sequence(const RopeKvCall& call, const KvSequence& sequence) {
  const PagedKvLayer& kv = call.kv;
  const int hd = call.head_dim;
  const auto each = [&](auto body) {
    for (int64_t i = 0; i < sequence.num_rows; ++i) {
      float* row = call.qkv + (sequence.row_begin + i) * call.stride;
      body(row, row + call.num_heads * hd, row + (call.num_heads + call.num_kv_heads) * hd, sequence.position + i);
    }
  };
  each([&](float* row, const float* k, const float* v, int64_t position) {
    rope_row(call, row, position);
    for (int h = 0; kv.layout.magnitudes && h < call.num_kv_heads; ++h)
      store_magnitudes(kv, kv.page(sequence.page_table[position / kPageTokens], h),
                       static_cast<int>(position % kPageTokens), h, k, v);
  });
  const BlockScales scales(kv, sequence);
  each([&](float*, const float* k, const float* v, int64_t position) {
    for (int h = 0; h < call.num_kv_heads; ++h) {
      store_kv(k + h * hd, v + h * hd, kv, h, kv.page(sequence.page_table[position / kPageTokens], h),
               static_cast<int>(position % kPageTokens), scales.k(position, h), scales.v(position, h));
      count_clipped(kv, position, h, k + h * hd, v + h * hd, &scales);
      if (position < std::max(kv.k_wide, kv.v_wide))
        store_wide(kv, sequence.page_table[0], h, position, k + h * hd, v + h * hd);
    }
  });
}

void rope_kv(const RopeKvCall& call, ThreadPool& pool) {
  pool.parallel_items(call.num_sequences, [&](int64_t s, int) { rope_kv_sequence(call, call.sequences[s]); });
}

}  // namespace

extern const ProducerKernels kProducersReference;
const ProducerKernels kProducersReference{"reference", Isa::kReference, rms_norm, quantize, silu_gate, rope_kv};

}  // namespace octavo::reference
