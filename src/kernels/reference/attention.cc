// The reference attention: one query row at a time, in the order that kernels/attention.h states.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/math.h"
#include "kernels/reference/quantize_row.h"

namespace octavo::reference {
namespace {

struct SoftmaxState {
  bool empty = true;
  float max = 0, sum = 0;
  std::vector<float> out;
};

float load_scale(const std::byte* page, size_t offset, int slot) {
  float scale = 0;
  std::memcpy(&scale, page + offset + static_cast<size_t>(slot) * sizeof(float), sizeof scale);
  return scale;
}

struct Query {
  const AttentionCall& call;
  const float* q;  // [head_dim]
  int kv_head;
  const int32_t* page_table;

  const std::byte* page(int64_t t) const { return call.kv.page(page_table[t / kPageTokens], kv_head); }

  // Elements and scales of key and value t.
  float wide(int64_t row, int d) const {
    const std::byte* tokens = call.kv.wide_tokens(page_table[0], kv_head);
    return load_element(ElementType::kBf16, tokens, static_cast<size_t>(row * call.head_dim + d));
  }
  float k(int64_t t, int d) const {
    if (t < call.kv.k_wide) return wide(t, d);
    return load_k(call.kv.layout, page(t), static_cast<int>(t % kPageTokens), d);
  }
  float v(int64_t t, int d) const {
    if (t < call.kv.v_wide) return wide(call.kv.k_wide + t, d);
    return load_v(call.kv.layout, page(t), static_cast<int>(t % kPageTokens), d);
  }
  float k_scale(int64_t t) const {
    if (t < call.kv.k_wide) return 1.0f;
    return load_scale(page(t), call.kv.layout.k_scales_offset(), static_cast<int>(t % kPageTokens));
  }
  float v_scale(int64_t t) const {
    if (t < call.kv.v_wide) return 1.0f;
    return load_scale(page(t), call.kv.layout.v_scales_offset(), static_cast<int>(t % kPageTokens));
  }

  float score(int64_t t) const {
    float sum = 0.0f;
    for (int d = 0; d < call.head_dim; ++d) sum = std::fma(q[d], k(t, d), sum);
    return sum * (k_scale(t) * (call.scale * kLog2E));
  }

  // Keys [begin, end) of one block, all visible.
  SoftmaxState block(int64_t begin, int64_t end) const {
    std::vector<float> e(static_cast<size_t>(end - begin));
    for (int64_t t = begin; t < end; ++t) e[static_cast<size_t>(t - begin)] = score(t);
    SoftmaxState state{
        .empty = false, .max = e[0], .sum = 0, .out = std::vector<float>(static_cast<size_t>(call.head_dim))};
    for (const float s : e) state.max = s > state.max || std::isnan(s) ? s : state.max;
    float lanes[16] = {};
    for (int64_t t = begin; t < end; ++t) {
      float& weight = e[static_cast<size_t>(t - begin)];
      weight = exp2_exact(weight - state.max);
      lanes[t % 16] += weight;
    }
    state.sum = fold_sum(lanes);
    for (int64_t t = begin; t < end; ++t) {
      const float weight = e[static_cast<size_t>(t - begin)] * v_scale(t);
      for (int d = 0; d < call.head_dim; ++d) {
        float& out = state.out[static_cast<size_t>(d)];
        out = std::fma(weight, v(t, d), out);
      }
    }
    return state;
  }
};

void merge(SoftmaxState& total, SoftmaxState block) {
  if (total.empty) {
    total = std::move(block);
    return;
  }
  const float max = std::max(total.max, block.max);
  const float a = exp2_exact(total.max - max), c = exp2_exact(block.max - max);
  total.sum = std::fma(total.sum, a, block.sum * c);
  for (size_t d = 0; d < total.out.size(); ++d) total.out[d] = std::fma(total.out[d], a, block.out[d] * c);
  total.max = max;
}

// out: [head_dim]
void attend(const Query& query, int64_t position, float* out) {
  const int64_t window = query.call.window;
  const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  SoftmaxState total;
  for (int64_t b = first / kAttentionBlock * kAttentionBlock; b <= position; b += kAttentionBlock)
    merge(total, query.block(std::max(first, b), std::min<int64_t>(position + 1, b + kAttentionBlock)));
  const float inverse = 1.0f / total.sum;
  for (size_t d = 0; d < total.out.size(); ++d) out[d] = total.out[d] * inverse;
}

std::string accepts(const AttentionKey&) {
  return {};
}

void run(const AttentionCall& call, ThreadPool& pool, Scratch&) {
  const int group = call.num_heads / call.kv.num_kv_heads;
  for (int64_t s = 0; s < call.num_sequences; ++s) {
    const KvSequence& sequence = call.sequences[s];
    pool.parallel_items(sequence.num_rows, [&](int64_t i, int) {
      const int64_t row = sequence.row_begin + i;
      std::vector<float> out(static_cast<size_t>(call.num_heads * call.head_dim));
      for (int h = 0; h < call.num_heads; ++h) {
        const Query query{call, call.q + row * call.q_stride + h * call.head_dim, h / group, sequence.page_table};
        attend(query, sequence.position + i, out.data() + h * call.head_dim);
      }
      store_row(out.data(), call.output, row);
    });
  }
}

}  // namespace

extern const AttentionKernel kAttentionReference;
const AttentionKernel kAttentionReference{"reference", Isa::kReference, accepts, run};

}  // namespace octavo::reference
