#include "loadgen/http_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/beast/http.hpp>

namespace octavo {
namespace {

namespace http = beast::http;
using tcp = asio::ip::tcp;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kConnectTimeout(10);
constexpr uint32_t kMaxHeader = 64 << 10;

}  // namespace

struct HttpClient::Connection {
  Connection(asio::io_context& io, asio::ssl::context& tls, bool secure) {
    if (secure)
      tls_stream.emplace(io, tls);
    else
      plain.emplace(io);
  }
  beast::tcp_stream& tcp_stream() { return tls_stream ? tls_stream->next_layer() : *plain; }

  std::optional<beast::tcp_stream> plain;
  std::optional<TlsStream> tls_stream;
  beast::flat_buffer buffer;
};

HttpClient::HttpClient(asio::io_context& io, ServerAddress address, HttpClientOptions options)
    : io_(io), address_(std::move(address)), options_(std::move(options)) {
  boost::system::error_code ignored;
  if (address_.tls && !options_.insecure) tls_.set_default_verify_paths(ignored);
  tls_.set_verify_mode(options_.insecure ? asio::ssl::verify_none : asio::ssl::verify_peer, ignored);
}

HttpClient::~HttpClient() = default;

Result<void> HttpClient::resolve() {
  boost::system::error_code error;
  tcp::resolver resolver(io_);
  endpoints_ = resolver.resolve(address_.host, address_.port, error);
  if (error)
    return fail({.what = "cannot find the server",
                 .where = address_.text(),
                 .found = error.message(),
                 .remedy = "check the URL's host name"});
  return {};
}

std::unique_ptr<HttpClient::Connection> HttpClient::idle_connection() {
  if (idle_.empty()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

asio::awaitable<HttpClient::Outcome> HttpClient::connect(Connection& connection) {
  Outcome outcome{.stage = "connecting"};
  beast::tcp_stream& stream = connection.tcp_stream();
  stream.expires_after(kConnectTimeout);
  const auto [error, endpoint] = co_await stream.async_connect(endpoints_, kAsTuple);
  outcome.error = error;
  if (error) co_return outcome;
  boost::system::error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  if (!connection.tls_stream) co_return outcome;
  outcome.stage = "the TLS handshake";
  TlsStream& secure = *connection.tls_stream;
  SSL_set_tlsext_host_name(secure.native_handle(), address_.host.c_str());
  if (!options_.insecure) secure.set_verify_callback(asio::ssl::host_name_verification(address_.host), ignored);
  const auto [tls_error] = co_await secure.async_handshake(asio::ssl::stream_base::client, kAsTuple);
  outcome.error = tls_error;
  co_return outcome;
}

template <class Stream>
asio::awaitable<HttpClient::Outcome> HttpClient::exchange(Connection& connection, Stream& stream,
                                                          const std::string& path, const std::string* body,
                                                          const ReplySink& sink) {
  Outcome outcome{.stage = "sending"};
  http::request<http::string_body> out(body == nullptr ? http::verb::get : http::verb::post, address_.path + path, 11);
  out.set(http::field::host, address_.host_header());
  out.set(http::field::user_agent, "octavo");
  out.set(http::field::accept, "text/event-stream, application/json");
  if (!options_.api_key.empty()) out.set(http::field::authorization, "Bearer " + options_.api_key);
  if (body != nullptr) {
    out.set(http::field::content_type, "application/json");
    out.body() = *body;
    out.prepare_payload();
  }
  connection.tcp_stream().expires_after(options_.timeout);
  const auto [write_error, written] = co_await http::async_write(stream, out, kAsTuple);
  outcome.error = write_error;
  if (write_error) co_return outcome;

  outcome.stage = "waiting for the reply";
  http::response_parser<http::buffer_body> parser;
  parser.header_limit(kMaxHeader);
  parser.body_limit(boost::none);
  const auto [header_error, header_size] =
      co_await http::async_read_header(stream, connection.buffer, parser, kAsTuple);
  outcome.error = header_error;
  outcome.any_bytes = header_size > 0;
  if (header_error) co_return outcome;
  const auto type = parser.get()[http::field::content_type];
  sink.begin(parser.get().result_int(), std::string_view(type.data(), type.size()));

  outcome.stage = "reading the reply";
  std::array<char, 16384> bytes;
  bool wanted = true;
  while (wanted && !parser.is_done()) {
    parser.get().body().data = bytes.data();
    parser.get().body().size = bytes.size();
    const auto [error, size] = co_await http::async_read_some(stream, connection.buffer, parser, kAsTuple);
    const size_t got = bytes.size() - parser.get().body().size;
    if (got > 0) wanted = sink.body(std::string_view(bytes.data(), got));
    outcome.error = error == http::error::need_buffer ? beast::error_code() : error;
    if (outcome.error) co_return outcome;
  }
  outcome.reusable = wanted && parser.keep_alive();
  co_return outcome;
}

std::string HttpClient::describe(const Outcome& outcome) const {
  if (!outcome.error) return {};
  if (outcome.error == beast::error::timeout) {
    const auto limit = outcome.stage == "connecting" || outcome.stage == "the TLS handshake"
                           ? std::chrono::duration<double>(kConnectTimeout)
                           : std::chrono::duration<double>(options_.timeout);
    return fmt::format("{}: no end after {} s", outcome.stage, limit.count());
  }
  if (outcome.error == http::error::end_of_stream || outcome.error == http::error::partial_message ||
      outcome.error == asio::error::eof || outcome.error == asio::error::connection_reset ||
      outcome.error == asio::error::broken_pipe || outcome.error == asio::ssl::error::stream_truncated)
    return fmt::format("{}: the server closed the connection", outcome.stage);
  return fmt::format("{}: {}", outcome.stage, outcome.error.message());
}

asio::awaitable<std::string> HttpClient::request(std::string path, const std::string* body, const ReplySink& sink) {
  while (true) {
    std::unique_ptr<Connection> connection = idle_connection();
    const bool kept = connection != nullptr;
    if (!kept) {
      connection = std::make_unique<Connection>(io_, tls_, address_.tls);
      const Outcome outcome = co_await connect(*connection);
      if (outcome.error) co_return describe(outcome);
    }
    Outcome outcome;
    if (connection->tls_stream)
      outcome = co_await exchange(*connection, *connection->tls_stream, path, body, sink);
    else
      outcome = co_await exchange(*connection, *connection->plain, path, body, sink);
    const bool stale = kept && outcome.error && outcome.error != beast::error::timeout && !outcome.any_bytes;
    if (stale) continue;  // the server had closed it: nothing of this request was answered
    if (outcome.reusable && !outcome.error) idle_.push_back(std::move(connection));
    co_return describe(outcome);
  }
}

}  // namespace octavo
