// LocalServer: `octavo serve` inside this process, on a free local port, for commands that measure it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "cli/serving.h"

namespace octavo {

class LocalServer {
 public:
  // Returns when the model is loaded and requests are answered.
  static Result<std::unique_ptr<LocalServer>> start(const ModelFlags& model, const EngineFlags& engine);
  ~LocalServer();  // lets requests at work end, then stops

  std::string address() const { return server_->address(); }
  // Turns true when the server begins to stop; before its time, that is Ctrl-C.
  const std::atomic<bool>& ended() const { return ended_; }

 private:
  LocalServer() = default;
  std::unique_ptr<Server> server_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace octavo
