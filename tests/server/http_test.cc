// HttpServer over real sockets: framing, limits, timeouts, clients that leave or do not read, draining.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "server/http/http_server.h"

namespace octavo {
namespace {

using std::chrono::milliseconds;

class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    timeval timeout{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void half_close() { shutdown(fd_, SHUT_WR); }
  // Reads until `end` is seen, or the end of the stream for "".
  std::string read(std::string_view end = "") {
    std::string text;
    char buffer[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int fd_;
};

// "/echo" answers with the body, "/wait" never, "/stream" three events, "/flood" without end, "/throw" throws.
struct Http : ::testing::Test {
  void serve(HttpOptions options = {}) {
    options.port = 0;
    Result<std::unique_ptr<HttpServer>> made = HttpServer::listen(
        options, [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { handle(request, exchange); });
    ASSERT_TRUE(made) << made.error().message();
    server = std::move(*made);
    port = static_cast<uint16_t>(std::stoi(server->address().substr(server->address().rfind(':') + 1)));
    server->every(milliseconds(1), [this] {
      for (const auto& exchange : floods)
        if (!exchange->gone()) exchange->send(std::string(20000, 'x'));
    });
    thread = std::thread([this] { server->run(); });
  }
  ~Http() override {
    if (server) server->drain();
    for (int i = 0; i < 50 && num_waiting > 0; ++i) finish_waiting();
    if (thread.joinable()) thread.join();
  }
  void finish_waiting() {
    server->post([this] {
      for (const auto& exchange : waiting) exchange->respond({.body = "late"});
      waiting.clear();
      num_waiting = 0;
    });
    std::this_thread::sleep_for(milliseconds(2));
  }
  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([this] { ++gone; });
    if (request.path == "/wait") {
      waiting.push_back(exchange);
      ++num_waiting;
    } else if (request.path == "/stream") {
      exchange->start_stream({});
      for (const char* text : {"data: 1\n\n", "data: 2\n\n", "data: 3\n\n"}) exchange->send(text);
      exchange->finish();
    } else if (request.path == "/flood") {
      exchange->start_stream({});
      floods.push_back(exchange);
    } else if (request.path == "/quiet") {
      exchange->start_stream({});
      waiting.push_back(exchange);
      ++num_waiting;
    } else if (request.path == "/large") {
      exchange->start_stream({});
      for (int i = 0; i < 3; ++i) exchange->send(std::string(large_event, static_cast<char>('a' + i)));
      exchange->finish();
    } else if (request.path == "/throw") {
      throw std::runtime_error("a handler threw");
    } else {
      exchange->respond({.body = request.method + " " + request.path + " " + request.body});
    }
  }
  bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

  size_t large_event = 6 << 20;
  std::unique_ptr<HttpServer> server;
  std::thread thread;
  uint16_t port = 0;
  std::vector<std::shared_ptr<Exchange>> waiting, floods;
  std::atomic<int> gone = 0, num_waiting = 0;
};

TEST_F(Http, KeepsConnectionsAndTakesPipelinedRequests) {
  serve();
  Client client(port);
  client.send("POST /echo?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /two HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string text = client.read("GET /two");
  EXPECT_NE(text.find("POST /echo hi"), std::string::npos) << text;
  client.send("POST /three HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
  EXPECT_NE(client.read("/three abc").find("200 OK"), std::string::npos);
  client.send("HEAD /four HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string head = client.read();
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(Http, StreamsInChunksOrUntilTheEnd) {
  serve();
  Client client(port);
  client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  std::string text = client.read("0\r\n\r\n");
  EXPECT_NE(text.find("Content-Type: text/event-stream"), std::string::npos) << text;
  EXPECT_NE(text.find("data: 3"), std::string::npos);
  client.send("GET /again HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(client.read("/again").find("200"), std::string::npos) << "the connection lives on";
  Client old(port);
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  text = old.read();
  EXPECT_TRUE(text.ends_with("data: 1\n\ndata: 2\n\ndata: 3\n\n")) << text;
}

TEST_F(Http, RefusesWhatIsTooLargeOrNoHttp) {
  serve({.max_header_bytes = 1000, .max_body_bytes = 1000});
  const auto status = [&](const std::string& request) {
    Client client(port);
    client.send(request);
    return client.read().substr(9, 3);
  };
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x')), "413");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\nx"), "413");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x')),
            "413");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"), "431");
  EXPECT_EQ(status("hello\r\n\r\n"), "400");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), "400");
  EXPECT_EQ(status("GET /throw HTTP/1.1\r\nConnection: close\r\n\r\n"), "500");
  EXPECT_EQ(status("GET /fine HTTP/1.1\r\nConnection: close\r\n\r\n"), "200");
}

TEST_F(Http, LargeRequestsTogetherAreBounded) {
  serve({.max_body_bytes = 1000, .max_bodies_bytes = 1500});
  Client first(port), second(port);
  first.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  std::this_thread::sleep_for(milliseconds(50));
  second.send("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_EQ(second.read().substr(9, 3), "503");
  first.send(std::string(1000, 'x'));
  EXPECT_EQ(first.read("xx").substr(9, 3), "200");
  Client third(port);
  third.send("POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(third.read("\r\n\r\n").substr(9, 3), "100") << "the room is free again";
}

// How large a chunked body will be, nobody knows before; afterwards it takes what it has.
TEST_F(Http, ManyChunkedRequestsAreAnsweredTogether) {
  serve({.max_body_bytes = 1000, .max_bodies_bytes = 1500});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>(port));
    clients.back()->send("POST /quiet HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    ASSERT_EQ(clients.back()->read("\r\n\r\n").substr(9, 3), "200") << i << " streams are open";
  }
  EXPECT_EQ(num_waiting, 40);
  for (const auto& client : clients) client->close();
  EXPECT_TRUE(eventually([&] { return gone == 40; }));
}

TEST_F(Http, LargeEventsReachClientsThatRead) {
  serve();
  Client client(port);
  client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string text = client.read("\r\n0\r\n\r\n");
  EXPECT_TRUE(text.ends_with("\r\n0\r\n\r\n")) << text.size();
  for (const char c : {'a', 'b', 'c'})
    EXPECT_GE(static_cast<size_t>(std::count(text.begin(), text.end(), c)), large_event) << c;
}

TEST_F(Http, SlowClientsAreLeft) {
  serve({.header_timeout = milliseconds(100), .body_timeout = milliseconds(100), .idle_timeout = milliseconds(100)});
  Client idle(port), header(port), body(port);
  header.send("GET / HT");
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx");
  EXPECT_EQ(idle.read(), "");
  EXPECT_EQ(header.read(), "");
  EXPECT_EQ(body.read(), "");
}

TEST_F(Http, NoticesThatClientsLeave) {
  serve();
  Client waits(port), streams(port);
  waits.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  streams.send("GET /quiet HTTP/1.1\r\nHost: a\r\n\r\n");
  streams.read("\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return num_waiting == 2; }));
  waits.close();
  EXPECT_TRUE(eventually([&] { return gone == 1; }));
  streams.close();
  EXPECT_TRUE(eventually([&] { return gone == 2; }));
}

TEST_F(Http, SilentStreamsGetPings) {
  serve({.ping_interval = milliseconds(20)});
  Client client(port);
  client.send("GET /quiet HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(client.read(": ping\n\n").find(": ping"), std::string::npos);
}

TEST_F(Http, ReadersThatDoNotReadAreLeft) {
  serve({.max_unsent_bytes = 1 << 20, .write_timeout = milliseconds(500)});
  Client client(port, 4096);
  client.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return gone == 1; }));
  Client other(port);
  other.send("GET /fine HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(other.read("/fine").substr(9, 3), "200");
}

// It reads, so that no write ever fails, but less than comes.
TEST_F(Http, ReadersThatAreTooSlowAreLeft) {
  serve({.max_unsent_bytes = 1 << 16, .write_timeout = milliseconds(1000)});
  Client client(port, 4096);
  client.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(eventually([&] {
    client.read("x");
    return gone == 1;
  }));
}

TEST_F(Http, TooManyConnections) {
  serve({.max_connections = 2});
  Client first(port), second(port);
  first.send("GET /wait HTTP/1.1\r\n\r\n");
  second.send("GET /wait HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return num_waiting == 2; }));
  Client third(port);
  EXPECT_EQ(third.read().substr(9, 3), "503");
}

TEST_F(Http, DrainAnswersWhatIsAtWork) {
  serve();
  Client busy(port), idle(port);
  idle.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
  idle.read("/a ");
  busy.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return num_waiting == 1; }));
  server->drain();
  EXPECT_EQ(idle.read(), "") << "closed";
  finish_waiting();
  const std::string text = busy.read();
  EXPECT_NE(text.find("late"), std::string::npos);
  EXPECT_NE(text.find("Connection: close"), std::string::npos);
  thread.join();
}

TEST_F(Http, WhatIsNotDoneAtTheDeadlineHearsOfIt) {
  serve({.drain_timeout = milliseconds(50), .flush_timeout = milliseconds(10'000)});
  server->on_deadline([this] {
    for (const auto& exchange : waiting) {
      exchange->respond({.status = 503, .body = "too late"});
      exchange->send("data: too late\n\n");
      exchange->finish();
    }
    num_waiting = 0;
  });
  Client whole(port), stream(port);
  whole.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  stream.send("GET /quiet HTTP/1.1\r\nHost: a\r\n\r\n");
  stream.read("\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return num_waiting == 2; }));
  server->drain();
  EXPECT_NE(whole.read().find("too late"), std::string::npos);
  EXPECT_NE(stream.read().find("data: too late\n\n\r\n0\r\n\r\n"), std::string::npos);
  thread.join();
}

TEST(HttpErrors, APortThatIsTaken) {
  const auto first = HttpServer::listen({.port = 0}, {});
  ASSERT_TRUE(first);
  const auto port = static_cast<uint16_t>(std::stoi((*first)->address().substr((*first)->address().rfind(':') + 1)));
  const auto second = HttpServer::listen({.port = port}, {});
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().where.find(std::to_string(port)), std::string::npos);
  EXPECT_FALSE(HttpServer::listen({.host = "no.such.host.invalid"}, {}));
}

}  // namespace
}  // namespace octavo
