// What the test of the HTTP layer does with an input: sends it to a connection, as a client that then says no more.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <string>

#include "base/check.h"
#include "server/http/connection.h"

namespace octavo {

// Returns what the server sent.
inline std::string fuzz_http(std::span<const std::byte> input) {
  int ends[2];
  OCTAVO_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  HttpContext context;
  context.options = {.max_header_bytes = 2048, .max_body_bytes = 2048};
  context.on_closed = [] {};
  context.handler = [](HttpRequest request, std::shared_ptr<Exchange> exchange) {
    if (request.path != "/stream") return exchange->respond({.body = request.path + request.body});
    exchange->start_stream({});
    exchange->send(request.body);
    exchange->finish();
  };
  OCTAVO_CHECK(write(ends[0], input.data(), input.size()) == static_cast<ssize_t>(input.size()));
  shutdown(ends[0], SHUT_WR);
  asio::ip::tcp::socket socket(context.io);
  socket.assign(asio::ip::tcp::v4(), ends[1]);
  asio::co_spawn(context.io, serve_connection(context, std::move(socket)), asio::detached);
  context.io.run();
  OCTAVO_CHECK(context.connections.empty() && context.bodies_bytes == 0);
  std::string out;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) out.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  return out;
}

}  // namespace octavo
