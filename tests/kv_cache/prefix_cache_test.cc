#include "kv_cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace octavo {
namespace {

KvGeometry tiny_geometry() {
  return {.layers = {{plain_format(ElementType::kBf16), plain_format(ElementType::kBf16)}},
          .num_kv_heads = 1,
          .head_dim = 2};
}

std::vector<int32_t> text(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<int32_t>(i);
  return ids;
}

class Prefix : public testing::Test {
 protected:
  explicit Prefix(int32_t pages = 8, PrefixHash hash = prefix_hash)
      : pool_(tiny_geometry(), pages), cache_(pool_, true, hash) {}

  // Computes a whole text as a request would.
  PageTable compute(std::span<const int32_t> tokens, std::string_view salt = {}) {
    PageTable table;
    cache_.match(tokens, static_cast<int64_t>(tokens.size()) - 1, salt, table);
    EXPECT_TRUE(cache_.grow((static_cast<int64_t>(tokens.size()) + 31) / 32, table));
    cache_.publish(tokens, static_cast<int64_t>(tokens.size()), salt, table);
    return table;
  }
  int64_t hits(std::span<const int32_t> tokens, std::string_view salt = {}) {
    PageTable table;
    const int64_t pages = cache_.match(tokens, static_cast<int64_t>(tokens.size()), salt, table);
    cache_.release(table);
    return pages;
  }
  void expect_balanced() { EXPECT_EQ(cache_.num_free() + cache_.num_cached() + cache_.num_held(), cache_.num_pages()); }

  PagePool pool_;
  PrefixCache cache_;
};

TEST_F(Prefix, FullPagesAreFoundAgainAndPartsAreNot) {
  const auto tokens = text(100);
  PageTable table = compute(tokens);
  const std::vector<int32_t> pages = table.pages;
  EXPECT_EQ(cache_.num_held(), 4);
  cache_.release(table);
  EXPECT_EQ(cache_.num_cached(), 3);  // the fourth was not full
  EXPECT_EQ(cache_.num_free(), 5);
  PageTable again;
  EXPECT_EQ(cache_.match(tokens, 100, "", again), 3);
  EXPECT_TRUE(std::equal(again.pages.begin(), again.pages.end(), pages.begin()));
  cache_.release(again);
  EXPECT_EQ(hits(text(70)), 2);
  EXPECT_EQ(hits(text(70, 1)), 0);
  auto late = tokens;
  late[40] = 7;
  EXPECT_EQ(hits(late), 1);
  expect_balanced();
}

TEST_F(Prefix, TheLimitLeavesTheLastTokenToBeComputed) {
  const auto tokens = text(64);
  PageTable table = compute(tokens), again;
  cache_.release(table);
  EXPECT_EQ(cache_.match(tokens, 63, "", again), 1);
  cache_.release(again);
}

TEST_F(Prefix, SaltsKeepTextsApart) {
  const auto tokens = text(64);
  PageTable table = compute(tokens, "alice");
  cache_.release(table);
  EXPECT_EQ(hits(tokens, "alice"), 2);
  EXPECT_EQ(hits(tokens, "bob"), 0);
  EXPECT_EQ(hits(tokens), 0);
}

TEST_F(Prefix, EqualPagesBecomeOne) {
  const auto tokens = text(64);
  PageTable a, b;  // computed side by side, neither found the other
  ASSERT_TRUE(cache_.grow(2, a));
  ASSERT_TRUE(cache_.grow(2, b));
  EXPECT_EQ(cache_.num_held(), 4);
  cache_.publish(tokens, 64, "", a);
  cache_.publish(tokens, 40, "", b);
  EXPECT_EQ(b.pages[0], a.pages[0]);
  EXPECT_NE(b.pages[1], a.pages[1]);
  EXPECT_EQ(cache_.num_held(), 3);
  cache_.publish(tokens, 64, "", b);
  EXPECT_EQ(b.pages, a.pages);
  cache_.release(a);
  EXPECT_EQ(cache_.num_held(), 2);
  cache_.release(b);
  EXPECT_EQ(cache_.num_cached(), 2);
  expect_balanced();
}

TEST_F(Prefix, TheLeastRecentlyUsedGoesFirstAndEndsBeforeBeginnings) {
  PageTable a = compute(text(64)), b = compute(text(64, 1000)), c = compute(text(64, 2000));
  cache_.release(a);
  cache_.release(b);
  cache_.release(c);
  EXPECT_EQ(hits(text(64)), 2);  // a is the youngest now
  PageTable big;
  ASSERT_TRUE(cache_.grow(5, big));
  EXPECT_EQ(hits(text(64)), 2);
  EXPECT_EQ(hits(text(64, 1000)), 0);
  EXPECT_EQ(hits(text(64, 2000)), 1);
  EXPECT_EQ(cache_.num_evicted(), 3u);
  EXPECT_FALSE(cache_.grow(9, big));
  EXPECT_EQ(big.pages.size(), 5u);
  ASSERT_TRUE(cache_.grow(8, big));
  EXPECT_EQ(cache_.num_cached(), 0);
  cache_.release(big);
  expect_balanced();
}

TEST_F(Prefix, HeldPagesAreNeverGivenUp) {
  PageTable held = compute(text(128)), other;
  EXPECT_FALSE(cache_.grow(5, other));
  ASSERT_TRUE(cache_.grow(4, other));
  EXPECT_EQ(hits(text(128)), 4);
  cache_.release(held);
  cache_.release(other);
  expect_balanced();
}

class CollidingPrefix : public Prefix {
 protected:
  CollidingPrefix() : Prefix(8, [](uint64_t, std::span<const int32_t>) -> uint64_t { return 42; }) {}
};

TEST_F(CollidingPrefix, TheHashIsNotTrusted) {
  PageTable a = compute(text(64));
  EXPECT_EQ(a.num_shared, 1);  // its second page has the key of the first: not entered
  EXPECT_TRUE(a.chain_ended);
  cache_.release(a);
  EXPECT_EQ(hits(text(64, 500)), 0);
  EXPECT_EQ(hits(text(64)), 1);
  EXPECT_EQ(hits(text(64), "salt"), 0);
  // The same tokens behind another prefix.
  auto twice = text(32);
  const auto copy = twice;
  twice.insert(twice.end(), copy.begin(), copy.end());
  EXPECT_EQ(hits(twice), 1);
  expect_balanced();
}

TEST(PrefixDisabled, OnlyCounts) {
  PagePool pool(tiny_geometry(), 4);
  PrefixCache cache(pool, false);
  PageTable table;
  ASSERT_TRUE(cache.grow(3, table));
  cache.publish(text(96), 96, "", table);
  cache.release(table);
  EXPECT_EQ(cache.num_free(), 4);
  EXPECT_EQ(cache.match(text(96), 96, "", table), 0);
}

// Whatever happens, every page is free, cached or held; and what is found holds the right tokens.
class RandomPrefix : public testing::TestWithParam<int> {};

TEST_P(RandomPrefix, EveryPageIsAccountedFor) {
  Random random(static_cast<uint64_t>(GetParam()));
  PagePool pool(tiny_geometry(), 24);
  // Few bits, so that keys collide all the time.
  PrefixCache cache(pool, true,
                    [](uint64_t parent, std::span<const int32_t> tokens) { return prefix_hash(parent, tokens) % 61; });
  struct User {
    std::vector<int32_t> tokens;
    std::string salt;
    PageTable table;
    int64_t computed = 0;
  };
  std::vector<User> users;
  std::vector<std::vector<int32_t>> written(24);  // the texts up to the end of each page, as their users wrote them
  for (int step = 0; step < 3000; ++step) {
    const uint64_t what = random.below(4);
    if (what == 0 && users.size() < 6) {
      User user{.salt = random.below(4) == 0 ? "s" : ""};
      const auto start = static_cast<int32_t>(random.below(3)) * 1000;
      user.tokens = text(1 + static_cast<int64_t>(random.below(260)), start);
      if (random.below(2) == 0) user.tokens[user.tokens.size() / 2] = -1;
      user.computed =
          32 * cache.match(user.tokens, static_cast<int64_t>(user.tokens.size()) - 1, user.salt, user.table);
      for (size_t i = 0; i < user.table.pages.size(); ++i) {
        std::vector<int32_t> expected(user.tokens.begin(), user.tokens.begin() + static_cast<ptrdiff_t>(32 * (i + 1)));
        expected.push_back(user.salt.empty() ? 0 : 1);
        ASSERT_EQ(written[static_cast<size_t>(user.table.pages[i])], expected);
      }
      users.push_back(std::move(user));
    } else if (what <= 2 && !users.empty()) {
      User& user = users[random.below(users.size())];
      const int64_t target = std::min(static_cast<int64_t>(user.tokens.size()),
                                      user.computed + 1 + static_cast<int64_t>(random.below(70)));
      if (!cache.grow((target + 31) / 32, user.table)) continue;
      for (int64_t i = user.computed / 32; i < target / 32; ++i) {
        auto& page = written[static_cast<size_t>(user.table.pages[static_cast<size_t>(i)])];
        page.assign(user.tokens.begin(), user.tokens.begin() + static_cast<ptrdiff_t>(32 * (i + 1)));
        page.push_back(user.salt.empty() ? 0 : 1);
      }
      user.computed = target;
      cache.publish(user.tokens, user.computed, user.salt, user.table);
    } else if (!users.empty()) {
      const auto place = users.begin() + static_cast<ptrdiff_t>(random.below(users.size()));
      cache.release(place->table);
      users.erase(place);
    }
    ASSERT_EQ(cache.num_free() + cache.num_cached() + cache.num_held(), 24);
  }
  for (User& user : users) cache.release(user.table);
  EXPECT_EQ(cache.num_held(), 0);
  EXPECT_GT(cache.num_evicted(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPrefix, testing::Range(0, 8));

}  // namespace
}  // namespace octavo
