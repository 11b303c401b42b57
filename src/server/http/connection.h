// One connection of HttpServer. For the .cc files of http/ only: it brings Boost.
#pragma once

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <set>

#include "server/http/http_server.h"

namespace octavo {

namespace asio = boost::asio;
namespace beast = boost::beast;

inline constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

class Connection;

// What all connections share.
struct HttpContext {
  HttpOptions options;
  HttpHandler handler;
  std::function<void()> on_closed;
  std::set<Connection*> connections;
  size_t bodies_bytes = 0;  // held by requests at work
  bool draining = false;
  void report(std::string_view problem) const;  // one line on stderr
  asio::io_context io{1};                       // last: its end destroys the connections that are left
};

class Connection {
 public:
  virtual ~Connection() = default;
  virtual void close_if_idle() = 0;
};

asio::awaitable<void> serve_connection(HttpContext& context, asio::ip::tcp::socket socket);

}  // namespace octavo
