// FakeServer: answers with whatever bytes a test writes; one thread per connection.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "loadgen/server_address.h"

namespace octavo {

class FakeServer {
 public:
  // `answer` gets each request's head and body and writes with send(); false: close the connection.
  using Answer = std::function<bool(FakeServer& server, int fd, const std::string& request)>;

  explicit FakeServer(Answer answer) : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_, 256);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = {.host = "127.0.0.1", .port = std::to_string(ntohs(address.sin_port))};
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~FakeServer() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : fds_) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : fds_) close(fd);
  }

  const ServerAddress& address() const { return address_; }
  bool stopping() const { return stopping_; }
  size_t connections() const {
    const std::lock_guard lock(mutex_);
    return fds_.size();
  }

  static void send(int fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }

  std::atomic<int> at_work{0}, most_at_work{0}, requests{0};

 private:
  void accept_all() {
    while (!stopping_) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      const std::lock_guard lock(mutex_);
      fds_.push_back(fd);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    std::string text;
    char buffer[4096];
    while (true) {
      const size_t head = text.find("\r\n\r\n");
      const size_t length_at = text.find("Content-Length: ");
      const size_t body = length_at < head ? std::stoul(text.substr(length_at + 16)) : 0;
      if (head == std::string::npos || text.size() < head + 4 + body) {
        const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
        if (got <= 0) return;
        text.append(buffer, static_cast<size_t>(got));
        continue;
      }
      const std::string request = text.substr(0, head + 4 + body);
      text.erase(0, request.size());
      ++requests;
      const int now = ++at_work;
      for (int most = most_at_work; now > most && !most_at_work.compare_exchange_weak(most, now);) {
      }
      const bool more = answer_(*this, fd, request);
      --at_work;
      if (more) continue;
      shutdown(fd, SHUT_RDWR);
      return;
    }
  }

  Answer answer_;
  int listener_;
  ServerAddress address_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<int> fds_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

inline const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
inline const std::string kStreamEnd = "0\r\n\r\n";

inline std::string http_chunk(const std::string& text) {
  char size[20];
  std::snprintf(size, sizeof(size), "%zx\r\n", text.size());
  return size + text + "\r\n";
}
inline std::string text_event(const std::string& text) {
  return "data: {\"choices\":[{\"text\":\"" + text + "\",\"finish_reason\":null}]}\n\n";
}
inline const std::string kLastEvents =
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

inline std::string whole_stream() {
  return kStreamHead + http_chunk(text_event("a")) + http_chunk(text_event("b")) + http_chunk(kLastEvents) + kStreamEnd;
}
inline std::string plain_reply(int status, const std::string& type, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace octavo
