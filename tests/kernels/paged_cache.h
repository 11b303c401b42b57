// A small paged KV cache for tests: scattered pages, poisoned where nothing has been written.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/aligned.h"
#include "base/random.h"
#include "formats/paged_kv.h"

namespace octavo::test {

inline TensorFormat kv_format(ElementType element) {
  return element_bits(element) > 8 ? plain_format(element) : row_format(element);
}

// Pages for sequences of the given lengths, in shuffled order, `pages_per_extent` to an extent. Every byte that no
// token of a sequence owns is 0xFF: NaN in every format and in the scales.
class PagedCache {
 public:
  PagedCache(ElementType k, ElementType v, int head_dim, int num_kv_heads, const std::vector<int64_t>& lengths,
             int pages_per_extent = 3, uint64_t seed = 1, bool magnitudes = false) {
    layer_.k_format = kv_format(k);
    layer_.v_format = kv_format(v);
    layer_.layout = {.k = k, .v = v, .head_dim = head_dim, .magnitudes = magnitudes};
    layer_.num_kv_heads = num_kv_heads;
    layer_.pages_per_extent = pages_per_extent;
    layer_.head_stride = layer_.layout.page_bytes() * static_cast<size_t>(pages_per_extent);
    layer_.extent_stride = layer_.head_stride * static_cast<size_t>(num_kv_heads);
    int64_t num_pages = 1;
    for (const int64_t length : lengths) num_pages += (length + kPageTokens - 1) / kPageTokens;
    const int64_t extents = (num_pages + pages_per_extent - 1) / pages_per_extent;
    memory_ = AlignedBytes(static_cast<size_t>(extents) * layer_.extent_stride);
    layer_.base = memory_.data();
    std::vector<int32_t> ids(static_cast<size_t>(num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    Random random(seed);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[random.below(i + 1)]);
    poison();
    size_t next = 0;
    for (const int64_t length : lengths) {
      const auto count = static_cast<size_t>((length + kPageTokens - 1) / kPageTokens);
      tables_.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(next),
                           ids.begin() + static_cast<std::ptrdiff_t>(next + count));
      next += count;
    }
  }

  const PagedKvLayer& layer() const { return layer_; }
  PagedKvLayer& layer() { return layer_; }
  const int32_t* table(size_t sequence) const { return tables_[sequence].data(); }
  void poison() { std::memset(memory_.data(), 0xFF, memory_.size()); }
  std::vector<std::byte> bytes() const { return {memory_.data(), memory_.data() + memory_.size()}; }

 private:
  PagedKvLayer layer_;
  AlignedBytes memory_;
  std::vector<std::vector<int32_t>> tables_;
};

}  // namespace octavo::test
