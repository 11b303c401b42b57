// PagedKv: all that kernels and models see of the KV cache: page addresses, page tables, formats.
//
// A page holds kPageTokens tokens of one KV head of one layer. Its K and V bytes are laid out like the weights of a
// linear layer (docs/kernels.md, "panels"), so that QK^T and PV are the same inner loop:
//   K  ceil(head_dim / 2) lines; line i = 32 tokens x dims (2i, 2i+1)
//   V  16 x ceil(head_dim / 32) lines; line t x ceil(head_dim / 32) + p = dims 32p..32p+31 x tokens (2t, 2t+1)
//   then FP32 scales: K [32], V [32] (1 where the format has none)
//   then, where the cache is rescaled, the largest magnitudes: K [32], V [32]
// Where an element sits in a line: panel_offset().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "formats/tensor_format.h"

namespace octavo {

inline constexpr int kPageTokens = 32;
// Keys are taken in fixed blocks of this many tokens counted from position 0, each with its own softmax state, merged
// in order: the result does not depend on who computes which block, nor on how the prompt was cut.
inline constexpr int kAttentionBlock = 256;

// Panels: 32 rows x 2 columns in a line of 32 x 2 elements.
//   8-bit elements: byte 16 x ((row % 16) / 4) + 8 x (row / 16) + 2 x (row % 4) + column, so that the lane-local unpack
//   of x86 gives rows 0-15 and rows 16-31 in order (docs/kernels.md).
//   16- and 32-bit elements: element index 32 x (row / 16) + 2 x (row % 16) + column.
inline constexpr int panel_offset_8bit(int row, int column) {
  return 16 * ((row & 15) / 4) + 8 * (row / 16) + 2 * (row & 3) + column;
}
inline constexpr int panel_index_wide(int row, int column) {
  return 32 * (row / 16) + 2 * (row & 15) + column;
}

// INT8 codes of the cache are stored as sign and magnitude (the value -128 does not occur), so that every 8-bit format
// is read through the same 128-entry table plus a sign bit.
inline constexpr uint8_t kv_int8_code(int8_t value) {
  return static_cast<uint8_t>(value < 0 ? 0x80 | -value : value);
}
inline constexpr int8_t kv_int8_value(uint8_t code) {
  return static_cast<int8_t>((code & 0x80) != 0 ? -(code & 0x7F) : code);
}

// Sizes and offsets of a page, in bytes. K and V may have different element types: F32, BF16, E4M3, E5M2, INT8.
struct KvPageLayout {
  ElementType k, v;
  int head_dim = 0;
  bool magnitudes = false;  // the page holds each token's largest magnitude of k and of v

  size_t k_line() const { return 64 * static_cast<size_t>(element_bits(k)) / 8; }
  size_t v_line() const { return 64 * static_cast<size_t>(element_bits(v)) / 8; }
  int v_panels() const { return (head_dim + 31) / 32; }
  size_t k_bytes() const { return static_cast<size_t>((head_dim + 1) / 2) * k_line(); }
  size_t v_offset() const { return k_bytes(); }
  size_t v_bytes() const { return 16 * static_cast<size_t>(v_panels()) * v_line(); }
  size_t k_scales_offset() const { return v_offset() + v_bytes(); }
  size_t v_scales_offset() const { return k_scales_offset() + kPageTokens * sizeof(float); }
  size_t k_magnitudes_offset() const { return v_scales_offset() + kPageTokens * sizeof(float); }
  size_t v_magnitudes_offset() const { return k_magnitudes_offset() + kPageTokens * sizeof(float); }
  size_t page_bytes() const { return k_magnitudes_offset() + (magnitudes ? 2 * kPageTokens * sizeof(float) : 0); }
};

// Keys and values (of a token and head each) that a stored scale was too small for, so that some of their numbers were
// clipped.
struct KvClipping {
  std::atomic<uint64_t> k{0}, v{0};
};

// The pages of one layer. Pages are numbered through the whole cache; consecutive pages of one head inside an extent
// are adjacent in memory (single scattered pages fall to a third of the read bandwidth).
struct PagedKvLayer {
  TensorFormat k_format, v_format;  // kRow: a scale per (token, head); kNone: bf16, float32
  KvPageLayout layout;
  int num_kv_heads = 0;
  std::byte* base = nullptr;
  size_t extent_stride = 0;  // bytes from one extent to the next
  size_t head_stride = 0;    // bytes from one head to the next inside an extent
  int pages_per_extent = 1;
  // Stored scales of the checkpoint, [num_kv_heads] each, or null: computed when a token is written.
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
  KvClipping* clipping = nullptr;  // counted where it is set
  // Rescaling (0: none): tokens [r b, r (b + 1)) of a text share a scale per head. The first one is the stored one, the
  // next ones come from the largest magnitude of the r tokens before (kernels/kv_write.h).
  int k_rescale = 0, v_rescale = 0;
  // What the cache holds of a key is (k - k_zeros) x k_inverses, and a query is multiplied by q_factors before it meets
  // one: [num_kv_heads][head_dim] each, or null. A zero point adds the same to every score of a query, so the softmax
  // does not see it.
  const float* q_factors = nullptr;
  const float* k_zeros = nullptr;
  const float* k_inverses = nullptr;
  // Tokens at positions below k_wide (v_wide) are read from here, in BF16 and without scale, not from their page:
  // [page of position 0][head] of K [k_wide][head_dim], V [v_wide][head_dim].
  int k_wide = 0, v_wide = 0;
  std::byte* wide_base = nullptr;

  bool has_wide() const { return k_wide > 0 || v_wide > 0; }
  size_t wide_bytes() const { return static_cast<size_t>(k_wide + v_wide) * static_cast<size_t>(layout.head_dim) * 2; }
  std::byte* wide_tokens(int32_t first_page, int head) const {
    return wide_base +
           (static_cast<size_t>(first_page) * static_cast<size_t>(num_kv_heads) + static_cast<size_t>(head)) *
               wide_bytes();
  }

  std::byte* page(int32_t page_id, int head) const {
    const size_t extent = static_cast<size_t>(page_id) / static_cast<size_t>(pages_per_extent);
    const size_t in_extent = static_cast<size_t>(page_id) % static_cast<size_t>(pages_per_extent);
    return base + extent * extent_stride + static_cast<size_t>(head) * head_stride + in_extent * layout.page_bytes();
  }
};

// One request's share of a forward pass: rows [row_begin, row_begin + num_rows) of the batch are the tokens at
// positions [position, position + num_rows). Page table entry i holds tokens [32 i, 32 i + 32); a page is zeroed before
// its first use, and the tokens of this pass are already written when attention runs.
struct KvSequence {
  int64_t row_begin = 0, num_rows = 0;
  int64_t position = 0;
  const int32_t* page_table = nullptr;
};

}  // namespace octavo
