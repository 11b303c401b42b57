#include "server/http/http_server.h"

#include <fmt/format.h>

#include <csignal>
#include <list>

#include "server/http/connection.h"

namespace octavo {
namespace {

using tcp = asio::ip::tcp;

}  // namespace

struct HttpServer::State {
  HttpContext context;
  tcp::acceptor acceptor{context.io};
  asio::signal_set signals{context.io};
  asio::steady_timer deadline{context.io};
  std::list<asio::steady_timer> tickers;
  std::vector<std::function<void()>> drain_callbacks, deadline_callbacks;
  std::string address;  // of the acceptor, which may close while others ask
  bool local = false;

  asio::awaitable<void> accept();
  void wait_for_signal();
  void begin_drain();
  void end_drain();
  void stop_when_idle();
  void tick(asio::steady_timer& timer, std::chrono::milliseconds period, std::function<void()> task);
};

asio::awaitable<void> HttpServer::State::accept() {
  asio::steady_timer pause(context.io);
  while (acceptor.is_open()) {
    tcp::socket socket(context.io);
    const auto [error] = co_await acceptor.async_accept(socket, kAsTuple);
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (error) {  // out of file descriptors and the like: it passes
      pause.expires_after(std::chrono::milliseconds(50));
      co_await pause.async_wait(kAsTuple);
      continue;
    }
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    asio::co_spawn(context.io, serve_connection(context, std::move(socket)), asio::detached);
  }
}

void HttpServer::State::wait_for_signal() {
  signals.async_wait([this](boost::system::error_code error, int) {
    if (error) return;
    if (context.draining) {
      context.io.stop();
      return;
    }
    wait_for_signal();
    begin_drain();
  });
}

void HttpServer::State::begin_drain() {
  if (context.draining) return;
  context.draining = true;
  boost::system::error_code ignored;
  acceptor.close(ignored);
  for (const auto& callback : drain_callbacks) callback();
  for (Connection* connection : context.connections) connection->close_if_idle();
  deadline.expires_after(context.options.drain_timeout);
  deadline.async_wait([this](boost::system::error_code error) {
    if (!error) end_drain();
  });
  stop_when_idle();
}

void HttpServer::State::end_drain() {
  for (const auto& callback : deadline_callbacks) callback();
  deadline.expires_after(context.options.flush_timeout);
  deadline.async_wait([this](boost::system::error_code error) {
    if (!error) context.io.stop();
  });
}

void HttpServer::State::stop_when_idle() {
  if (context.draining && context.connections.empty()) context.io.stop();
}

void HttpServer::State::tick(asio::steady_timer& timer, std::chrono::milliseconds period, std::function<void()> task) {
  timer.expires_after(period);
  timer.async_wait([this, &timer, period, task = std::move(task)](boost::system::error_code error) mutable {
    if (error) return;
    task();
    tick(timer, period, std::move(task));
  });
}

HttpServer::HttpServer() : state_(std::make_unique<State>()) {}
HttpServer::~HttpServer() {
  state_->context.on_closed = [] {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options, HttpHandler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer());
  State& state = *server->state_;
  state.context.options = options;
  state.context.handler = std::move(handler);
  state.context.on_closed = [&state] { state.stop_when_idle(); };
  const auto failed = [&](const boost::system::error_code& error) {
    return fail({.what = "cannot listen",
                 .where = fmt::format("{}:{}", options.host, options.port),
                 .found = error.message(),
                 .remedy = "choose another --host or --port"});
  };
  boost::system::error_code error;
  tcp::resolver resolver(state.context.io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) return failed(error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  state.acceptor.open(endpoint.protocol(), error);
  if (!error) state.acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) state.acceptor.bind(endpoint, error);
  if (!error) state.acceptor.listen(1024, error);
  if (error) return failed(error);
  const tcp::endpoint bound = state.acceptor.local_endpoint(error);
  state.local = bound.address().is_loopback();
  const std::string host = bound.address().to_string();
  state.address = fmt::format("http://{}:{}", bound.address().is_v6() ? "[" + host + "]" : host, bound.port());
  state.signals.add(SIGINT, error);
  state.signals.add(SIGTERM, error);
  return server;
}

std::string HttpServer::address() const {
  return state_->address;
}

bool HttpServer::is_local() const {
  return state_->local;
}

void HttpServer::run() {
  asio::co_spawn(state_->context.io, state_->accept(), asio::detached);
  state_->wait_for_signal();
  while (!state_->context.io.stopped()) {
    try {
      state_->context.io.run();
    } catch (const std::exception& error) {  // of a task: it ends the task, not the server
      state_->context.report(error.what());
    }
  }
}

void HttpServer::post(std::function<void()> task) {
  asio::post(state_->context.io, std::move(task));
}

void HttpServer::drain() {
  post([this] { state_->begin_drain(); });
}

void HttpServer::on_drain(std::function<void()> callback) {
  state_->drain_callbacks.push_back(std::move(callback));
}

void HttpServer::on_deadline(std::function<void()> callback) {
  state_->deadline_callbacks.push_back(std::move(callback));
}

void HttpServer::every(std::chrono::milliseconds period, std::function<void()> task) {
  state_->tickers.emplace_back(state_->context.io);
  state_->tick(state_->tickers.back(), period, std::move(task));
}

size_t HttpServer::num_connections() const {
  return state_->context.connections.size();
}

}  // namespace octavo
