// What every row does alike when it writes a token into the KV cache: keys and queries into the space of a cache with
// channel scales, wide tokens, and the scales of a cache that is rescaled. Scalar and in a fixed order: rows agree.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/paged_kv.h"

namespace octavo {

// q [num_heads][head_dim] x q_factors of its KV head; k [num_kv_heads][head_dim] -> (k - k_zeros) x k_inverses. Nothing
// where the layer has none.
void to_cache_space(const PagedKvLayer& kv, int num_heads, float* q, float* k);

// The scale that was given for a token's values, or NaN where INT8 codes could not tell of a NaN among them: it poisons
// the token, as it would under a computed scale. Null stays null.
const float* given_scale(ElementType element, const float* given, const float* values, int count);

// The BF16 copies of a token at `position` of one head, where it is a wide one.
void store_wide(const PagedKvLayer& kv, int32_t first_page, int head, int64_t position, const float* k, const float* v);

// The largest magnitude of a token's k and v of one head into its page; infinity where one is not finite.
void store_magnitudes(const PagedKvLayer& kv, std::byte* page, int slot, int head, const float* k, const float* v);

// Scales of a rescaled cache for the tokens of a pass, whose magnitudes are in their pages already.
//   Block b = 0: the stored scale. b > 0: scale_from_amax(m / 0.9), m the largest finite magnitude of block b - 1 (wide
//   tokens not counted; of zeros alone: the stored scale). So a scale depends on earlier blocks alone.
class BlockScales {
 public:
  BlockScales(const PagedKvLayer& kv, const KvSequence& sequence);
  // Of a token of the pass; null where K (V) is not rescaled.
  const float* k(int64_t position, int head) const { return k_.at(position, head); }
  const float* v(int64_t position, int head) const { return v_.at(position, head); }

 private:
  struct Side {
    int rescale = 0, heads = 0;
    int64_t first_block = 0;
    std::vector<float> scales;  // [blocks of the pass][heads]
    const float* at(int64_t position, int head) const {
      return rescale == 0 ? nullptr : &scales[static_cast<size_t>((position / rescale - first_block) * heads + head)];
    }
  };
  static Side side(const PagedKvLayer& kv, const KvSequence& sequence, bool is_k);
  Side k_, v_;
};

// Counts a token's k and v of one head [head_dim] that their given scales clip. `scales`: of a rescaled cache, or null.
void count_clipped(const PagedKvLayer& kv, int64_t position, int head, const float* k, const float* v,
                   const BlockScales* scales);

}  // namespace octavo
