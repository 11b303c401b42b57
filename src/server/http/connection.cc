#include "server/http/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/beast/http.hpp>
#include <cstdio>
#include <optional>

#include "server/http/socket_exchange.h"

namespace octavo {
namespace {

namespace http = beast::http;
using tcp = asio::ip::tcp;
using Parser = http::request_parser<http::string_body>;

std::string error_text(std::string_view message) {
  return fmt::format(R"({{"error":{{"message":"{}","type":"invalid_request_error","param":null,"code":null}}}})",
                     message);
}

struct Refusal {
  int status;
  std::string_view message;
};

Refusal refusal_of(const beast::error_code& error) {
  if (error == http::error::header_limit) return {431, "the request's header is too large"};
  if (error == http::error::body_limit) return {413, "the request's body is too large"};
  return {400, "this is not an HTTP request"};
}

class HttpConnection final : public Connection {
 public:
  HttpConnection(HttpContext& context, tcp::socket socket) : context_(context), stream_(std::move(socket)) {
    context_.connections.insert(this);
  }
  ~HttpConnection() override {
    release_body();
    context_.connections.erase(this);
    context_.on_closed();
  }

  void close_if_idle() override {
    if (idle_) stream_.close();
  }

  asio::awaitable<void> serve() {
    if (context_.connections.size() > context_.options.max_connections) {
      co_await refuse({503, "too many connections"});
      co_return;
    }
    while (true) {
      const bool more = co_await serve_one();
      release_body();
      if (!more) break;
    }
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

 private:
  // One request; false: close the connection.
  asio::awaitable<bool> serve_one() {
    if (buffer_.size() == 0) {
      if (context_.draining) co_return false;
      idle_ = true;
      stream_.expires_after(context_.options.idle_timeout);
      const auto [error, size] = co_await stream_.async_read_some(buffer_.prepare(4096), kAsTuple);
      idle_ = false;
      if (error) co_return false;
      buffer_.commit(size);
    }
    Parser parser;
    const std::optional<Refusal> refusal = co_await read_request(parser);
    if (refusal) {
      if (refusal->status != 0) co_await refuse(*refusal);
      co_return false;
    }
    const bool more = co_await answer(parser);
    co_return more && !context_.draining;
  }

  // Reads header and body. A refusal with status 0: the client is gone, or so slow that its socket was closed.
  asio::awaitable<std::optional<Refusal>> read_request(Parser& parser) {
    parser.header_limit(static_cast<uint32_t>(context_.options.max_header_bytes));
    parser.body_limit(context_.options.max_body_bytes);
    stream_.expires_after(context_.options.header_timeout);
    const auto [header_error, unused] = co_await http::async_read_header(stream_, buffer_, parser, kAsTuple);
    if (header_error == http::error::end_of_stream || header_error == beast::error::timeout ||
        header_error == asio::error::connection_reset)
      co_return Refusal{0, ""};
    if (header_error) co_return refusal_of(header_error);
    const auto length = parser.content_length();
    const size_t bytes = length ? static_cast<size_t>(*length) : parser.chunked() ? context_.options.max_body_bytes : 0;
    if (bytes > context_.options.max_body_bytes) co_return Refusal{413, "the request's body is too large"};
    if (context_.bodies_bytes + bytes > context_.options.max_bodies_bytes)
      co_return Refusal{503, "too many large requests at once"};
    body_bytes_ = bytes;
    context_.bodies_bytes += bytes;
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
      const auto [error, size] = co_await http::async_write(stream_, go_on, kAsTuple);
      if (error) co_return Refusal{0, ""};
    }
    stream_.expires_after(context_.options.body_timeout);
    const auto [body_error, size] = co_await http::async_read(stream_, buffer_, parser, kAsTuple);
    if (body_error == http::error::partial_message || body_error == asio::error::connection_reset ||
        body_error == beast::error::timeout || body_error == http::error::end_of_stream)
      co_return Refusal{0, ""};
    if (body_error) co_return refusal_of(body_error);
    // Until here a chunked body held the room of the largest one.
    context_.bodies_bytes -= std::exchange(body_bytes_, parser.get().body().size());
    context_.bodies_bytes += body_bytes_;
    co_return std::nullopt;
  }

  // Hands the request to the handler and sends what it answers.
  asio::awaitable<bool> answer(Parser& parser) {
    auto& message = parser.get();
    const bool head = message.method() == http::verb::head;
    const bool keep_alive = message.keep_alive();
    const unsigned version = message.version();
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    std::string target = text(message.target());
    target.resize(std::min(target.find('?'), target.size()));
    HttpRequest request{.method = head ? "GET" : text(message.method_string()),
                        .path = std::move(target),
                        .authorization = text(message[http::field::authorization]),
                        .origin = text(message[http::field::origin]),
                        .host = text(message[http::field::host]),
                        .requested_headers = text(message[http::field::access_control_request_headers]),
                        .body = std::move(message.body())};
    auto exchange = std::make_shared<SocketExchange>(stream_.get_executor(), context_.options);
    watch(exchange);
    try {
      context_.handler(std::move(request), exchange);
    } catch (const std::exception& error) {
      context_.report(error.what());
      exchange->fail();
    }
    co_await exchange->wait_for_answer();
    bool sent = false;
    if (exchange->streaming())
      sent = co_await send_stream(*exchange, version, keep_alive);
    else if (!exchange->gone())
      sent = co_await send_response(exchange->response(), version, keep_alive, head);
    exchange->close();
    unwatch();
    co_return sent&& keep_alive;
  }

  asio::awaitable<bool> send_response(HttpResponse& response, unsigned version, bool keep_alive, bool head) {
    http::response<http::string_body> out(static_cast<http::status>(response.status), version);
    set_headers(out, response.headers);
    if (!response.content_type.empty()) out.set(http::field::content_type, response.content_type);
    out.keep_alive(keep_alive && !context_.draining);
    out.content_length(response.body.size());
    out.body() = std::move(response.body);
    stream_.expires_after(context_.options.write_timeout);
    http::response_serializer<http::string_body> serializer(out);
    if (head) {
      const auto [error, size] = co_await http::async_write_header(stream_, serializer, kAsTuple);
      co_return !error;
    }
    while (!serializer.is_done()) {  // the time limit is for progress, not for the whole
      const auto [error, size] = co_await http::async_write_some(stream_, serializer, kAsTuple);
      if (error) co_return false;
      stream_.expires_after(context_.options.write_timeout);
    }
    co_return true;
  }

  asio::awaitable<bool> send_stream(SocketExchange& exchange, unsigned version, bool keep_alive) {
    const bool chunked = version >= 11;
    http::response<http::empty_body> out(http::status::ok, version);
    set_headers(out, exchange.stream_headers());
    out.set(http::field::content_type, "text/event-stream; charset=utf-8");
    out.set(http::field::cache_control, "no-cache");
    out.set("X-Accel-Buffering", "no");
    out.keep_alive(keep_alive && chunked && !context_.draining);
    out.chunked(chunked);
    http::response_serializer<http::empty_body> serializer(out);
    stream_.expires_after(context_.options.write_timeout);
    const auto [header_error, unused] = co_await http::async_write_header(stream_, serializer, kAsTuple);
    if (header_error) {
      exchange.lose();
      co_return false;
    }
    while (true) {
      co_await exchange.wait_for_text(context_.options.ping_interval);
      if (exchange.gone()) co_return false;
      const bool last = exchange.finished();
      std::string text = exchange.take_text();
      if (text.empty() && !last) text = ": ping\n\n";
      beast::error_code error;
      if (!text.empty()) error = co_await write_text(text, chunked);
      if (!error && last && chunked) error = co_await write_raw("0\r\n\r\n");
      if (error) {
        exchange.lose();
        co_return false;
      }
      if (last) co_return chunked;
    }
  }

  asio::awaitable<beast::error_code> write_text(std::string_view text, bool chunked) {
    if (!chunked) {
      const beast::error_code error = co_await write_raw(text);
      co_return error;
    }
    const std::string framed = fmt::format("{:x}\r\n{}\r\n", text.size(), text);
    const beast::error_code error = co_await write_raw(framed);
    co_return error;
  }

  asio::awaitable<beast::error_code> write_raw(std::string_view bytes) {
    while (!bytes.empty()) {
      stream_.expires_after(context_.options.write_timeout);
      const auto [error, size] = co_await stream_.async_write_some(asio::buffer(bytes.data(), bytes.size()), kAsTuple);
      if (error) co_return error;
      bytes.remove_prefix(size);
    }
    co_return beast::error_code();
  }

  // Says why, then reads what the client still sends for a moment: closing at once would take the answer away.
  asio::awaitable<void> refuse(Refusal refusal) {
    HttpResponse response{.status = refusal.status, .body = error_text(refusal.message)};
    if (refusal.status == 503) response.headers.emplace_back("Retry-After", "1");
    const bool sent = co_await send_response(response, 11, false, false);
    if (!sent) co_return;
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(2));
    buffer_.clear();
    for (size_t left = context_.options.max_body_bytes; left > 0;) {
      const auto [error, size] = co_await stream_.async_read_some(buffer_.prepare(65536), kAsTuple);
      if (error) co_return;
      left -= std::min(left, size);
    }
  }

  template <class Message>
  static void set_headers(Message& out, const HttpHeaders& headers) {
    out.set(http::field::server, "octavo");
    for (const auto& [name, value] : headers) out.set(name, value);
  }

  // Waits for the client to hang up while its answer is made. What it sends ahead ends the watch.
  void watch(const std::shared_ptr<SocketExchange>& exchange) {
    stream_.socket().async_wait(tcp::socket::wait_read, [this, exchange](boost::system::error_code error) {
      if (error || exchange->closed()) return;
      char byte;
      const ssize_t got = recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got > 0) return;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return watch(exchange);
      exchange->lose();
    });
  }
  void unwatch() {
    beast::error_code ignored;
    stream_.socket().cancel(ignored);
  }

  void release_body() { context_.bodies_bytes -= std::exchange(body_bytes_, 0); }

  HttpContext& context_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  size_t body_bytes_ = 0;
  bool idle_ = false;
};

}  // namespace

void HttpContext::report(std::string_view problem) const {
  fmt::print(stderr, "octavo: a request failed: {}\n", problem);
}

asio::awaitable<void> serve_connection(HttpContext& context, tcp::socket socket) {
  // Shared: a handler of the watch may still be queued when the connection ends.
  const auto connection = std::make_shared<HttpConnection>(context, std::move(socket));
  try {
    co_await connection->serve();
  } catch (const std::exception& error) {
    context.report(error.what());
  }
}

}  // namespace octavo
