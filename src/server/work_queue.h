// WorkQueue: a thread that does tasks one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace octavo {

class WorkQueue {
 public:
  WorkQueue();
  ~WorkQueue();  // finishes the task at work, drops the others
  void post(std::function<void()> task);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace octavo
