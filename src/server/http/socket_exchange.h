// The Exchange of a socket: keeps what the handler says until the connection's coroutine has sent it.
#pragma once

#include <atomic>
#include <optional>

#include "server/http/connection.h"

namespace octavo {

class SocketExchange final : public Exchange {
 public:
  SocketExchange(const asio::any_io_executor& executor, const HttpOptions& options)
      : wake_(executor), max_unsent_(options.max_unsent_bytes), most_behind_(options.write_timeout) {}

  void respond(HttpResponse response) override;
  void start_stream(HttpHeaders headers) override;
  void send(std::string_view text) override;
  void finish() override;
  void on_gone(std::function<void()> callback) override;
  bool gone() const override { return gone_; }

  // For the connection.
  asio::awaitable<void> wait_for_answer();  // until respond(), start_stream() or the client's leave
  asio::awaitable<void> wait_for_text(std::chrono::milliseconds most);
  void fail();   // the handler threw
  void lose();   // the client is gone
  void close();  // the exchange is over; nobody listens any more
  bool closed() const { return closed_; }
  bool streaming() const { return streaming_ && !gone_; }
  bool finished() const { return finished_; }
  HttpResponse& response() { return response_; }
  const HttpHeaders& stream_headers() const { return response_.headers; }
  std::string take_text();

 private:
  asio::steady_timer wake_;
  using Clock = std::chrono::steady_clock;
  size_t max_unsent_;
  std::chrono::milliseconds most_behind_;
  std::optional<Clock::time_point> behind_since_;  // since when more than max_unsent_ waits
  HttpResponse response_;
  std::string text_;
  std::function<void()> on_gone_;
  bool answered_ = false, streaming_ = false, finished_ = false, closed_ = false;
  std::atomic<bool> gone_ = false;
};

}  // namespace octavo
