#include "kv_cache/page_pool.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace octavo {
namespace {
// Pages of one head that lie next to each other: scattered single pages fall to a third of the read bandwidth.
constexpr size_t kExtentBytes = size_t{128} << 10;

KvPageLayout page_layout(const KvLayerFormat& format, int head_dim) {
  return {.k = format.k.element,
          .v = format.v.element,
          .head_dim = head_dim,
          .magnitudes = format.k_rescale > 0 || format.v_rescale > 0};
}
}  // namespace

size_t KvGeometry::page_bytes() const {
  size_t bytes = 0;
  for (const KvLayerFormat& format : layers)
    bytes += page_layout(format, head_dim).page_bytes() * static_cast<size_t>(num_kv_heads);
  return bytes;
}

size_t KvGeometry::wide_bytes() const {
  size_t tokens = 0;
  for (const KvLayerFormat& format : layers) tokens += static_cast<size_t>(format.k_wide + format.v_wide);
  return tokens * static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim) * 2;
}

PagePool::PagePool(KvGeometry geometry, int32_t num_pages)
    : geometry_(std::move(geometry)), num_pages_(num_pages), num_free_(num_pages) {
  OCTAVO_CHECK(num_pages > 0 && !geometry_.layers.empty(), "{} pages, {} layers", num_pages, geometry_.layers.size());
  size_t smallest = SIZE_MAX;
  for (const KvLayerFormat& format : geometry_.layers)
    smallest = std::min(smallest, page_layout(format, geometry_.head_dim).page_bytes());
  pages_per_extent_ =
      static_cast<int>(std::min<size_t>((kExtentBytes + smallest - 1) / smallest, static_cast<size_t>(num_pages)));

  const size_t heads = static_cast<size_t>(geometry_.num_kv_heads), per_extent = static_cast<size_t>(pages_per_extent_);
  const size_t extents = (static_cast<size_t>(num_pages) + per_extent - 1) / per_extent;
  const size_t extent_stride = geometry_.page_bytes() * per_extent;
  memory_ = AlignedBytes(extents * extent_stride);
  wide_memory_ = AlignedBytes(geometry_.wide_bytes() * static_cast<size_t>(num_pages));
  size_t offset = 0, wide_offset = 0;
  for (const KvLayerFormat& format : geometry_.layers) {
    PagedKvLayer layer{.k_format = format.k, .v_format = format.v, .layout = page_layout(format, geometry_.head_dim)};
    layer.num_kv_heads = geometry_.num_kv_heads;
    layer.base = memory_.data() + offset;
    layer.extent_stride = extent_stride;
    layer.head_stride = layer.layout.page_bytes() * per_extent;
    layer.pages_per_extent = pages_per_extent_;
    layer.k_rescale = format.k_rescale;
    layer.v_rescale = format.v_rescale;
    layer.k_wide = format.k_wide;
    layer.v_wide = format.v_wide;
    if (layer.has_wide()) layer.wide_base = wide_memory_.data() + wide_offset;
    wide_offset += layer.wide_bytes() * heads * static_cast<size_t>(num_pages);
    offset += layer.head_stride * heads;
    layers_.push_back(layer);
  }
  in_use_.resize(static_cast<size_t>(num_pages));
  used_before_.resize(static_cast<size_t>(num_pages));
}

bool PagePool::allocate(int64_t count, std::vector<int32_t>& pages) {
  if (count > num_free_) return false;
  int32_t next = pages.empty() ? 0 : (pages.back() + 1) % num_pages_;
  for (; count > 0; next = (next + 1) % num_pages_) {
    if (in_use_[static_cast<size_t>(next)]) continue;
    in_use_[static_cast<size_t>(next)] = true;
    if (used_before_[static_cast<size_t>(next)]) zero(next);  // fresh memory is zero already
    used_before_[static_cast<size_t>(next)] = true;
    pages.push_back(next);
    --num_free_;
    --count;
  }
  return true;
}

void PagePool::release(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    OCTAVO_CHECK(in_use_[static_cast<size_t>(page)], "page {} is released twice", page);
    in_use_[static_cast<size_t>(page)] = false;
    ++num_free_;
  }
}

void PagePool::zero(int32_t page) {
  for (const PagedKvLayer& layer : layers_)
    for (int head = 0; head < layer.num_kv_heads; ++head)
      std::memset(layer.page(page, head), 0, layer.layout.page_bytes());
}

}  // namespace octavo
