#include "kv_cache/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace octavo {
namespace {

KvGeometry geometry(int layers = 3) {
  const TensorFormat fp8 = row_format(ElementType::kE4m3), bf16 = plain_format(ElementType::kBf16);
  KvGeometry g{.num_kv_heads = 2, .head_dim = 64};
  for (int i = 0; i < layers; ++i) g.layers.push_back({i % 2 == 0 ? fp8 : bf16, fp8});
  return g;
}

TEST(PagePool, PagesOfAllLayersAndHeadsAreApart) {
  PagePool pool(geometry(), 70);
  std::set<std::pair<const std::byte*, const std::byte*>> ranges;
  for (const PagedKvLayer& layer : pool.layers())
    for (int head = 0; head < layer.num_kv_heads; ++head)
      for (int32_t page = 0; page < pool.num_pages(); ++page) {
        const std::byte* begin = layer.page(page, head);
        ranges.insert({begin, begin + layer.layout.page_bytes()});
      }
  EXPECT_EQ(ranges.size(), 3u * 2u * 70u);
  const std::byte* end = nullptr;
  for (const auto& [begin, stop] : ranges) {
    EXPECT_GE(begin, end);
    end = stop;
  }
}

TEST(PagePool, ConsecutivePagesOfAHeadAreAdjacent) {
  PagePool pool(geometry(), 64);
  const PagedKvLayer& layer = pool.layers()[0];
  EXPECT_EQ(layer.page(1, 1) - layer.page(0, 1), static_cast<ptrdiff_t>(layer.layout.page_bytes()));
  EXPECT_GE(static_cast<size_t>(layer.pages_per_extent) * layer.layout.page_bytes(), size_t{128} << 10);
}

TEST(PagePool, CountsAndRefusesWithoutChange) {
  PagePool pool(geometry(), 8);
  std::vector<int32_t> a, b;
  EXPECT_TRUE(pool.allocate(5, a));
  EXPECT_FALSE(pool.allocate(4, b));
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_TRUE(pool.allocate(3, b));
  pool.release(a);
  EXPECT_EQ(pool.num_free(), 5);
  std::set<int32_t> distinct(b.begin(), b.end());
  EXPECT_EQ(distinct.size(), 3u);
}

TEST(PagePool, AReusedPageIsZero) {
  PagePool pool(geometry(1), 1);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.allocate(1, pages));
  const PagedKvLayer& layer = pool.layers()[0];
  std::memset(layer.page(0, 1), 0x7F, layer.layout.page_bytes());
  pool.release(pages);
  pages.clear();
  ASSERT_TRUE(pool.allocate(1, pages));
  for (size_t i = 0; i < layer.layout.page_bytes(); ++i) ASSERT_EQ(layer.page(0, 1)[i], std::byte{0});
}

TEST(PagePool, BytesPerToken) {
  KvGeometry g{
      .layers = {{row_format(ElementType::kE4m3), row_format(ElementType::kE4m3)}}, .num_kv_heads = 3, .head_dim = 64};
  EXPECT_DOUBLE_EQ(g.bytes_per_token(), 3 * (64 + 64 + 4 + 4));
}

}  // namespace
}  // namespace octavo
