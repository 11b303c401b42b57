#include "server/server.h"

#include "server/page/page.h"
#include "server/work_queue.h"

namespace octavo {

// The order is that of life: what is destroyed first uses what comes before it.
struct Server::State {
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Api> api;
  std::unique_ptr<WorkQueue> worker;
  std::unique_ptr<TextEngine> engine;
};

Server::Server() : state_(std::make_unique<State>()) {}

Server::~Server() {
  // First those who still send: the engine's last events go to an api that nobody runs any more.
  state_->worker.reset();
  state_->engine.reset();
}

Result<std::unique_ptr<Server>> Server::listen(const HttpOptions& options, ApiOptions api) {
  std::unique_ptr<Server> server(new Server());
  State& state = *server->state_;
  OCTAVO_ASSIGN(state.http,
                HttpServer::listen(options, [&state](HttpRequest request, std::shared_ptr<Exchange> exchange) {
                  state.api->handle(std::move(request), std::move(exchange));
                }));
  api.local_only = state.http->is_local() && api.api_key.empty();
  if (api.page.empty()) api.page = std::string(built_in_page());
  state.worker = std::make_unique<WorkQueue>();
  state.api = std::make_unique<Api>(
      std::move(api), [&state](std::function<void()> task) { state.http->post(std::move(task)); },
      [&state](std::function<void()> task) { state.worker->post(std::move(task)); });
  state.http->on_drain([&state] { state.api->set_draining(); });
  state.http->on_deadline([&state] { state.api->abandon_all(); });
  return server;
}

std::string Server::address() const {
  return state_->http->address();
}

void Server::set_progress(double loaded) {
  state_->http->post([this, loaded] { state_->api->set_progress(loaded); });
}

void Server::set_engine(std::unique_ptr<TextEngine> engine) {
  auto shared = std::make_shared<std::unique_ptr<TextEngine>>(std::move(engine));
  state_->http->post([this, shared] {
    state_->engine = std::move(*shared);
    state_->api->set_engine(state_->engine.get());
  });
}

void Server::stop() {
  state_->http->drain();
}

void Server::on_stop(std::function<void()> callback) {
  state_->http->on_drain(std::move(callback));
}

void Server::run(std::function<void(const std::string& line)> log) {
  static constexpr std::chrono::seconds kPeriod(10);
  state_->http->every(kPeriod, [this, log = std::move(log)] {
    if (const std::string line = state_->api->log_line(static_cast<double>(kPeriod.count())); !line.empty()) log(line);
  });
  state_->http->run();
}

}  // namespace octavo
