#include "parallel/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace octavo {
namespace {

TEST(ThreadPool, EveryThreadRunsOncePerCall) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(threads));
      pool.run([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, RangesCoverEachIndexOnceAndStartOnTheGrain) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 31, 32, 33, 100, 576, 1000})
      for (const int64_t grain : {1, 7, 32}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_LT(thread, threads);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
      }
  }
}

TEST(ThreadPool, ItemsAreTakenOnce) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> seen(1000);
  pool.parallel_items(1000, [&](int64_t i, int) { ++seen[static_cast<size_t>(i)]; });
  for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
}

TEST(ThreadPool, BarrierSeparatesPhases) {
  ThreadPool pool(3);
  std::vector<int> first(3), second(3);
  for (int round = 0; round < 200; ++round) {
    pool.run([&](int thread) {
      first[static_cast<size_t>(thread)] = round;
      pool.barrier();
      int sum = 0;
      for (const int value : first) sum += value;
      second[static_cast<size_t>(thread)] = sum;
      pool.barrier();
    });
    for (const int sum : second) ASSERT_EQ(sum, 3 * round);
  }
}

TEST(ThreadPool, WakesAfterThreadsHaveParked) {
  ThreadPool pool(2);
  std::atomic<int> runs{0};
  pool.run([&](int) { ++runs; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  pool.run([&](int) { ++runs; });
  EXPECT_EQ(runs.load(), 4);
}

}  // namespace
}  // namespace octavo
