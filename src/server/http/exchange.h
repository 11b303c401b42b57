// Exchange: one HTTP request and the way to answer it. The server's own sockets implement it, and so do tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string authorization, origin, host;
  std::string requested_headers;  // Access-Control-Request-Headers
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

// All calls on the network thread. Either respond() once, or start_stream(), any number of send(), and finish().
// Calls after the client has gone do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void respond(HttpResponse response) = 0;
  // Server-sent events; `headers` as in HttpResponse.
  virtual void start_stream(HttpHeaders headers) = 0;
  virtual void send(std::string_view text) = 0;
  virtual void finish() = 0;
  // Called once when the client is gone, or reads so slowly that too much would have to be kept for it. Not called
  // after respond() or finish().
  virtual void on_gone(std::function<void()> callback) = 0;
  virtual bool gone() const = 0;  // any thread
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;

}  // namespace octavo
