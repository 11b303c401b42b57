// HttpServer: HTTP/1.1 on one thread, a coroutine per connection. Knows nothing of what is served.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http/exchange.h"

namespace octavo {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_body_bytes = size_t{16} << 20;
  size_t max_bodies_bytes = size_t{512} << 20;  // of all requests being read or answered; more: 503
  size_t max_unsent_bytes = size_t{4} << 20;    // of one stream; more for write_timeout: the client counts as gone
  size_t max_connections = 4096;                // more: 503
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds ping_interval{15'000};  // a comment in a stream that is silent
  std::chrono::milliseconds drain_timeout{60'000};
  std::chrono::milliseconds flush_timeout{5'000};  // after drain_timeout: for the last words to those that are cut off
};

class HttpServer {
 public:
  // Listens. Errors name host and port.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, HttpHandler handler);
  ~HttpServer();

  std::string address() const;  // "http://127.0.0.1:8000"
  bool is_local() const;        // only this machine can reach it
  // Serves until stopped: SIGINT and SIGTERM drain, a second one ends at once.
  void run();
  // Runs `task` on the network thread. Any thread; in the order of the calls.
  void post(std::function<void()> task);
  // Any thread. No new connections; requests at work are answered; then run() returns. `on_drain` is called on the
  // network thread when this begins, for whatever reason.
  void drain();
  void on_drain(std::function<void()> callback);
  // Called on the network thread when requests are still at work drain_timeout later: time to end them.
  void on_deadline(std::function<void()> callback);
  // Calls `task` every `period` on the network thread, while run() runs.
  void every(std::chrono::milliseconds period, std::function<void()> task);
  size_t num_connections() const;  // network thread

 private:
  HttpServer();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
