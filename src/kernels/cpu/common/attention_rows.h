// What an instruction set offers for attention. attention_driver.cc holds everything that is the same on all of them:
// who computes which keys of which head, pages, threads, the order of merging. Plain structs only: objects built for a
// newer CPU read them.
//
// "Rows" here are (token, head of the group) pairs of one KV head: row r is token r / group, head r % group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/paged_kv.h"

namespace octavo {

// kFinite...: no visible code is NaN or infinite, and the CPU has GFNI.
enum class KvKind : uint8_t { kF32, kBf16, kE4m3, kE5m2, kFiniteE4m3, kFiniteE5m2, kInt8 };

inline constexpr int kBlockPages = kAttentionBlock / kPageTokens;

// What stays the same during a call.
struct AttentionShape {
  KvKind k = KvKind::kF32, v = KvKind::kF32;
  int head_dim = 0, v_panels = 0;                                 // v_panels: head_dim in units of 32
  size_t v_offset = 0, k_scales_offset = 0, v_scales_offset = 0;  // in a page
  float scale = 0;                                                // head_dim^-0.5 x log2 e
  int k_wide = 0, v_wide = 0;                                     // as in PagedKvLayer
};

// The keys [begin, end) of one block of one sequence and KV head, counted from the block's first key. pages[i] holds
// keys 32 i .. 32 i + 31; it is read only where one of them is in [begin, end).
struct KeyBlock {
  const std::byte* pages[kBlockPages] = {};
  int begin = 0, end = 0;
  const std::byte* wide = nullptr;  // BF16 tokens that stand for the block's first ones; null where none is seen
};

// Softmax state of rows: largest score, sum, unnormalised output [rows][32 x v_panels]. m and l have room for a
// multiple of 16 rows.
struct SoftmaxState {
  float *m = nullptr, *l = nullptr, *o = nullptr;
};

// Room for the queries of `rows` rows in a kernel's own layout: chunks of 128 dimensions, each [rows][132].
inline constexpr int kQueryChunk = 128, kQueryStride = 132;

// A thread's working memory, in units of 4 bytes; all of it 64-byte aligned.
struct AttentionMemory {
  float* queries = nullptr;                          // see above, with 16 rows to spare
  float *k_tile = nullptr, *v_tile = nullptr;        // a block decoded: [8][head_dim][32], [v_panels][256][32]
  float *k_factors = nullptr, *v_factors = nullptr;  // [256]: k_scale x scale, v_scale
  float* scores = nullptr;                           // [16][256]
};

// Rows whose tokens are at first_position, first_position + 1, ..., and the block that they meet.
struct AttentionTile {
  int rows = 0, group = 0;
  int64_t first_position = 0, window = 0;  // window as in AttentionCall
  int64_t block_start = 0;
  bool fresh = false;  // the state is written, not merged
};

struct AttentionRows {
  // Brings the queries of num_tokens x group rows into memory.queries. q points at the group's first head.
  void (*load_queries)(const AttentionShape& shape, const float* q, int64_t token_stride, int num_tokens, int group,
                       const AttentionMemory& memory);
  // Decode: the state of one block for `rows` rows that all see [begin, end). `next`, or null, is the block that
  // this thread takes after this one: its keys are prefetched.
  void (*attend_block)(const AttentionShape& shape, const KeyBlock& block, const KeyBlock* next, int rows,
                       const AttentionMemory& memory, const SoftmaxState& state);
  // Prefill: decodes a block into memory, then lets the rows of a tile see it, each as far as it may, merging into
  // `state`.
  void (*load_block)(const AttentionShape& shape, const KeyBlock& block, const AttentionMemory& memory);
  void (*attend_tile)(const AttentionShape& shape, const AttentionTile& tile, const AttentionMemory& memory,
                      const SoftmaxState& state);
  // total = total and then block, for `rows` rows of 32 x v_panels outputs.
  void (*merge)(const AttentionShape& shape, const SoftmaxState& total, const SoftmaxState& block, int rows);
  // out[token][head of the group][head_dim] = o / l.
  void (*finish)(const AttentionShape& shape, const SoftmaxState& state, int num_tokens, int group, float* out,
                 int64_t token_stride);
};

namespace avx2 {
extern const AttentionRows kAttentionRows;
}
namespace avx512 {
extern const AttentionRows kAttentionRows;
}
namespace avx512_bf16 {
extern const AttentionRows kAttentionRows;
}

}  // namespace octavo
