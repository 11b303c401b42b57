// HttpClient: HTTP/1.1 requests, many at a time on one thread, over connections that are kept. For the .cc files of
// loadgen only: it brings Boost.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loadgen/server_address.h"

namespace octavo {

namespace asio = boost::asio;
namespace beast = boost::beast;

struct HttpClientOptions {
  std::string api_key;                         // sent as a bearer token; empty: none
  std::chrono::milliseconds timeout{600'000};  // of a request, from connecting to its reply's last byte
  bool insecure = false;                       // accept any certificate
};

// What a reply is handed to, piece by piece.
struct ReplySink {
  std::function<void(int status, std::string_view content_type)> begin;
  std::function<bool(std::string_view bytes)> body;  // false: the rest is not wanted
};

class HttpClient {
 public:
  HttpClient(asio::io_context& io, ServerAddress address, HttpClientOptions options);
  ~HttpClient();

  // Finds the server's addresses; waits. Before the first request.
  Result<void> resolve();
  // Sends `body` (a GET if there is none) to a path below the address's own. Returns why the reply could not be read to
  // its end; empty: it was, or was not wanted to be. A kept connection that the server closed meanwhile is opened anew.
  asio::awaitable<std::string> request(std::string path, const std::string* body, const ReplySink& sink);

 private:
  struct Connection;
  struct Outcome {
    beast::error_code error;
    std::string stage;  // what was being done
    bool any_bytes = false, reusable = false;
  };
  std::unique_ptr<Connection> idle_connection();
  asio::awaitable<Outcome> connect(Connection& connection);
  template <class Stream>
  asio::awaitable<Outcome> exchange(Connection& connection, Stream& stream, const std::string& path,
                                    const std::string* body, const ReplySink& sink);
  std::string describe(const Outcome& outcome) const;

  asio::io_context& io_;
  ServerAddress address_;
  HttpClientOptions options_;
  asio::ssl::context tls_{asio::ssl::context::tls_client};
  asio::ip::tcp::resolver::results_type endpoints_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace octavo
