#include "server/http/socket_exchange.h"

namespace octavo {

void SocketExchange::respond(HttpResponse response) {
  if (gone_ || answered_) return;
  response_ = std::move(response);
  answered_ = true;
  on_gone_ = nullptr;
  wake_.cancel();
}

void SocketExchange::start_stream(HttpHeaders headers) {
  if (gone_ || answered_) return;
  response_.headers = std::move(headers);
  answered_ = streaming_ = true;
  wake_.cancel();
}

void SocketExchange::send(std::string_view text) {
  if (gone_ || !streaming_ || finished_) return;
  // A few large events at once are no sign of a slow reader; being behind for long is.
  text_ += text;
  if (text_.size() > max_unsent_) {
    const Clock::time_point now = Clock::now();
    if (!behind_since_) behind_since_ = now;
    if (now - *behind_since_ > most_behind_) return lose();
  }
  wake_.cancel();
}

std::string SocketExchange::take_text() {
  behind_since_.reset();
  return std::exchange(text_, {});
}

void SocketExchange::finish() {
  if (gone_) return;
  finished_ = true;
  on_gone_ = nullptr;
  wake_.cancel();
}

void SocketExchange::on_gone(std::function<void()> callback) {
  if (gone_) return callback();
  on_gone_ = std::move(callback);
}

void SocketExchange::fail() {
  if (streaming_) return lose();
  respond({.status = 500,
           .body = R"({"error":{"message":"internal error","type":"server_error","param":null,"code":null}})"});
}

void SocketExchange::lose() {
  if (gone_ || closed_) return;
  gone_ = true;
  text_.clear();
  wake_.cancel();
  if (const auto callback = std::exchange(on_gone_, nullptr)) callback();
}

void SocketExchange::close() {
  closed_ = true;
  on_gone_ = nullptr;
}

asio::awaitable<void> SocketExchange::wait_for_answer() {
  while (!answered_ && !gone_) {
    wake_.expires_at(asio::steady_timer::time_point::max());
    co_await wake_.async_wait(kAsTuple);
  }
}

asio::awaitable<void> SocketExchange::wait_for_text(std::chrono::milliseconds most) {
  if (!text_.empty() || finished_ || gone_) co_return;
  wake_.expires_after(most);
  co_await wake_.async_wait(kAsTuple);
}

}  // namespace octavo
