// PagePool: the memory of the KV cache, handed out in pages of kPageTokens tokens that span all layers and heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "formats/paged_kv.h"

namespace octavo {

// K and V formats of one layer.
struct KvLayerFormat {
  TensorFormat k, v;
  int k_wide = 0, v_wide = 0, k_rescale = 0, v_rescale = 0;  // as in PagedKvLayer
};

struct KvGeometry {
  std::vector<KvLayerFormat> layers;
  int num_kv_heads = 0, head_dim = 0;

  // Bytes of one page over all layers and heads, scales included; and of the wide tokens beside a text's first page.
  size_t page_bytes() const;
  size_t wide_bytes() const;
  // Per token of a text so long, the last page filled; without a length, in the limit of long ones.
  double bytes_per_token() const { return static_cast<double>(page_bytes()) / kPageTokens; }
  double bytes_per_token(int64_t tokens) const {
    return bytes_per_token() + static_cast<double>(wide_bytes()) / static_cast<double>(tokens);
  }
};

class PagePool {
 public:
  // Memory is reserved at once and touched page by page.
  PagePool(KvGeometry geometry, int32_t num_pages);

  // `count` zeroed pages, appended to `pages`, preferring the ones that follow the last page of `pages` in memory.
  // False (and no change) when there are not enough.
  bool allocate(int64_t count, std::vector<int32_t>& pages);
  void release(std::span<const int32_t> pages);

  std::span<const PagedKvLayer> layers() const { return layers_; }
  std::span<PagedKvLayer> layers() { return layers_; }
  int32_t num_pages() const { return num_pages_; }
  int32_t num_free() const { return num_free_; }
  const KvGeometry& geometry() const { return geometry_; }

 private:
  void zero(int32_t page);

  KvGeometry geometry_;
  int32_t num_pages_ = 0, num_free_ = 0;
  int pages_per_extent_ = 1;
  AlignedBytes memory_, wide_memory_;
  std::vector<PagedKvLayer> layers_;
  std::vector<bool> in_use_, used_before_;
};

}  // namespace octavo
