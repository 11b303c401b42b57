// ThreadPool: a fixed set of threads, one fork and join per operation. Threads spin for a while, then park.
#pragma once

#include <cstdint>
#include <memory>

#include "base/function_ref.h"

namespace octavo {

// Cores this process may use (affinity mask).
int available_cores();

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // the caller counts as thread 0
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // body(thread) on every thread, and returns when all have finished. Not reentrant.
  void run(FunctionRef<void(int thread)> body);
  // body(begin, end, thread): [0, n) in pieces that begin at multiples of `grain` and shrink towards the end
  // (parallel/handout.h); a thread may get several. Runs on the caller alone when there is at most one grain.
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int thread)> body);
  // body(index, thread) for each index in [0, n), handed out one by one: for items of unequal cost. Their results must
  // not depend on which thread takes which.
  void parallel_items(int64_t n, FunctionRef<void(int64_t index, int thread)> body);

  // Waits inside run() until every thread has arrived.
  void barrier();

 private:
  struct State;
  void worker(int index);
  int size_;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
