#include "cli/local_server.h"

#include <csignal>

#include "cli/version.h"

namespace octavo {

Result<std::unique_ptr<LocalServer>> LocalServer::start(const ModelFlags& model, const EngineFlags& engine) {
  std::unique_ptr<LocalServer> local(new LocalServer());
  const std::vector<std::string> names = api_model_names(model.model, {});
  std::signal(SIGPIPE, SIG_IGN);
  OCTAVO_ASSIGN(local->server_, Server::listen({.port = 0}, {.model_names = names, .version = kVersion}));
  local->server_->on_stop([local = local.get()] { local->ended_ = true; });
  local->thread_ = std::thread([local = local.get()] { local->server_->run([](const std::string&) {}); });
  OCTAVO_TRY(load_into(*local->server_, model, engine, names.front()));
  return local;
}

LocalServer::~LocalServer() {
  if (!thread_.joinable()) return;
  server_->stop();
  thread_.join();
}

}  // namespace octavo
