// Slabs of rows on all threads, and which error of several is given.
#include "parallel/slabs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace octavo {
namespace {

TEST(Slabs, CoverEveryRowOnce) {
  ThreadPool pool(3);
  for (const int64_t rows : {0, 1, 7, 8, 9, 100}) {
    std::vector<int> seen(static_cast<size_t>(rows));
    const auto ran = over_slabs(pool, rows, 8, [&](int64_t begin, int64_t end) -> Result<void> {
      EXPECT_EQ(begin % 8, 0);
      EXPECT_LE(end - begin, 8);
      for (int64_t r = begin; r < end; ++r) ++seen[static_cast<size_t>(r)];
      return {};
    });
    EXPECT_TRUE(ran);
    EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(rows), 1));
  }
}

TEST(Slabs, TheFirstErrorInTheRowsIsGiven) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    const auto ran = over_slabs(pool, 1000, 10, [](int64_t begin, int64_t) -> Result<void> {
      if (begin < 300) return {};
      return fail({.what = std::to_string(begin)});
    });
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().what, "300");
  }
}

}  // namespace
}  // namespace octavo
