// Attention over a paged KV cache, prefill and decode alike, causal, with grouped heads and an optional sliding window.
//
// For query row r at position p and head h (KV head h / (num_heads / num_kv_heads)), keys t = max(0, p - window + 1) ..
// p:
//   s[t] = (chain over d of fma(q[d], k[t, d])) x (k_scale[t] x (scale x log2 e))        k, v are element values
//   Per block b of kAttentionBlock keys counted from position 0 (blocks without a visible key are skipped):
//     m_b = max s;  e[t] = exp2(s[t] - m_b), 0 for keys that are not visible;  l_b = sum of e in 16 lanes (lane t %
//     16), folded as in producers.h o_b[d] = chain over t of fma(e[t] x v_scale[t], v[t, d]) from 0 (keys that are not
//     visible contribute exactly 0, whatever their bytes)
//   Blocks merge in order: the first is taken as it is, then m' = max(m, m_b), a = exp2(m - m'), c = exp2(m_b - m'),
//     l = fma(l, a, l_b x c), o[d] = fma(o[d], a, o_b[d] x c).
//   out = o[d] x (1 / l).
// reference, avx2 and avx512 agree bit for bit. avx512_bf16 rounds q and e x v_scale to BF16 and takes two terms per
// step; it agrees with itself for every chunking, batch and thread count.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/paged_kv.h"
#include "kernels/activation.h"
#include "kernels/isa.h"
#include "kernels/scratch.h"
#include "parallel/thread_pool.h"

namespace octavo {

struct AttentionCall {
  const float* q = nullptr;  // [rows, num_heads x head_dim], rotated
  int64_t q_stride = 0;
  int num_heads = 0, head_dim = 0;
  float scale = 0;     // head_dim^-0.5
  int64_t window = 0;  // keys a token sees, itself included; 0 = all
  const KvSequence* sequences = nullptr;
  int64_t num_sequences = 0;
  PagedKvLayer kv;
  Activation output;  // [rows, num_heads x head_dim], quantized as producers.h says
};

struct AttentionKey {
  ElementType k, v;
  int head_dim = 0, group = 0;  // query heads per KV head
};

// A row of attention.inc.
struct AttentionKernel {
  std::string_view name;
  Isa isa;
  std::string (*accepts)(const AttentionKey& key);
  void (*run)(const AttentionCall& call, ThreadPool& pool, Scratch& scratch);
};

std::span<const AttentionKernel* const> attention_kernels();
const AttentionKernel& choose_attention(const AttentionKey& key, Isa isa, std::vector<std::string>* why_not = nullptr);

}  // namespace octavo
