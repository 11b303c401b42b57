#include "parallel/thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <thread>
#include <vector>

#include "base/check.h"
#include "parallel/handout.h"

namespace octavo {
namespace {
// Waiting goes in three steps. Pauses first, some tens of microseconds: longer than the gap between two operations.
// Then the core is offered to others between looks, since the thread that is waited for may need it (more threads than
// cores, or a busy machine). After some milliseconds without work a worker parks.
constexpr int kSpins = 1000, kYields = 4000;

// One look's worth of waiting, the `count`-th.
void wait_a_little(int count) {
  if (count < kSpins)
    __builtin_ia32_pause();
  else
    std::this_thread::yield();
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}
}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

struct ThreadPool::State {
  std::vector<std::thread> threads;
  const FunctionRef<void(int)>* body = nullptr;
  bool stop = false;
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<int> running{0};
  alignas(64) std::atomic<int> parked{0};
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<uint32_t> barrier_epoch{0};
};

ThreadPool::ThreadPool(int num_threads) : size_(num_threads), state_(std::make_unique<State>()) {
  OCTAVO_CHECK(num_threads >= 1, "{} threads", num_threads);
  for (int i = 1; i < size_; ++i) state_->threads.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->epoch.fetch_add(1);
  futex_wake_all(state_->epoch);
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::worker(int index) {
  uint32_t seen = 0;
  while (true) {
    uint32_t epoch = 0;
    int spins = 0;
    while ((epoch = state_->epoch.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpins + kYields) {
        wait_a_little(spins);
        continue;
      }
      state_->parked.fetch_add(1);
      while (state_->epoch.load() == seen) futex_wait(state_->epoch, seen);
      state_->parked.fetch_sub(1);
      spins = 0;
    }
    seen = epoch;
    if (state_->stop) return;
    (*state_->body)(index);
    state_->running.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::run(FunctionRef<void(int)> body) {
  if (size_ == 1) return body(0);
  state_->body = &body;
  state_->running.store(size_ - 1, std::memory_order_relaxed);
  state_->epoch.fetch_add(1);
  if (state_->parked.load() > 0) futex_wake_all(state_->epoch);
  body(0);
  for (int spins = 0; state_->running.load(std::memory_order_acquire) > 0; ++spins) wait_a_little(spins);
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> body) {
  if (n <= 0) return;
  if (n <= grain || size_ == 1) return body(0, n, 0);
  Handout handout(n, size_);
  run([&](int thread) {
    for (Handout::Range r = handout.take(grain); !r.empty(); r = handout.take(grain)) body(r.begin, r.end, thread);
  });
}

void ThreadPool::parallel_items(int64_t n, FunctionRef<void(int64_t, int)> body) {
  if (n <= 0) return;
  if (n == 1 || size_ == 1) {
    for (int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  run([&](int thread) {
    for (int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) body(i, thread);
  });
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t epoch = state_->barrier_epoch.load(std::memory_order_relaxed);
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    state_->arrived.store(0, std::memory_order_relaxed);
    state_->barrier_epoch.store(epoch + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; state_->barrier_epoch.load(std::memory_order_acquire) == epoch; ++spins) wait_a_little(spins);
}

}  // namespace octavo
