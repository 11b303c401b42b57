// octavo serve: the OpenAI API over one model.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "cli/commands.h"
#include "cli/serving.h"
#include "cli/version.h"

namespace octavo {
namespace {

class ServeCommand final : public Command {
 public:
  std::string_view name() const override { return "serve"; }
  std::string_view group() const override { return "Use a model"; }
  std::string_view summary() const override { return "Serve a model over the OpenAI API, and a chat page"; }

  void declare(Flags& flags) override {
    model_.declare(flags);
    flags.group("Server");
    flags.option("host", http_.host, "Address to listen on; 0.0.0.0 for all");
    flags.option("port", port_, "Port; 0 for any free one");
    flags.option("api-key", api_key_, "Key that clients must send");
    flags.option("served-model-name", served_name_, "The model's name in the API (default: its folder's name)");
    flags.option("cors-origin", cors_origins_,
                 "Let pages of this origin use the server; \"*\" for any; may be repeated");
    engine_.declare(flags);
  }

  Result<void> run() override {
    OCTAVO_TRY(check());
    const std::vector<std::string> names = api_model_names(model_.model, served_name_);
    ApiOptions api{.model_names = names, .api_key = api_key_, .cors_origins = cors_origins_, .version = kVersion};
    http_.port = static_cast<uint16_t>(port_);
    std::signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    OCTAVO_ASSIGN(const std::unique_ptr<Server> server, Server::listen(http_, std::move(api)));
    fmt::print(stderr, "Listening on {}\n", server->address());
    std::atomic<bool> loaded = false;
    Result<void> outcome;
    std::thread loader([&] {
      outcome = load_into(*server, model_, engine_, names.front());
      loaded = true;
      if (!outcome) server->stop();
    });
    server->run([](const std::string& line) { fmt::print(stderr, "{}\n", line); });
    if (!loaded) {  // stopped while the model loads, which nothing can interrupt
      std::fflush(nullptr);
      std::_Exit(0);
    }
    loader.join();
    if (outcome) fmt::print(stderr, "Stopped\n");
    return outcome;
  }

 private:
  Result<void> check() {
    if (port_ < 0 || port_ > 65535)
      return fail({.what = "not a port", .where = "--port", .found = std::to_string(port_), .expected = "0 to 65535"});
    return engine_.check();
  }

  ModelFlags model_;
  HttpOptions http_;
  EngineFlags engine_;
  int port_ = 8000;
  std::string api_key_, served_name_;
  std::vector<std::string> cors_origins_;
};

}  // namespace

std::unique_ptr<Command> make_serve_command() {
  return std::make_unique<ServeCommand>();
}

}  // namespace octavo
