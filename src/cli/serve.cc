// octavo serve: the OpenAI API over one model.
#include <fmt/format.h>

#include <algorithm>
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
    flags.option("served-model-name", served_names_,
                 "The model's name in the API (default: its folder's name); may be repeated");
    flags.option("cors-origin,--allowed-origins", cors_origins_,
                 "Let pages of this origin use the server; \"*\" for any; may be repeated, or a JSON list");
    flags.option("drain-timeout", drain_seconds_, "Seconds that requests at work have after SIGTERM");
    engine_.declare(flags);
  }

  Result<void> run() override {
    OCTAVO_TRY(check());
    const std::vector<std::string> names = api_model_names(model_.model, served_names_);
    ApiOptions api{.model_names = names, .api_key = api_key_, .cors_origins = cors_origins_, .version = kVersion};
    api.names_told = std::max<size_t>(1, served_names_.size());
    http_.port = static_cast<uint16_t>(port_);
    http_.drain_timeout = std::chrono::seconds(drain_seconds_);
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
    if (drain_seconds_ < 0 || drain_seconds_ > 86'400)
      return fail({.what = "not a time",
                   .where = "--drain-timeout",
                   .found = std::to_string(drain_seconds_),
                   .expected = "0 to 86400 seconds"});
    OCTAVO_TRY(expand_lists(cors_origins_, "--cors-origin"));
    return engine_.check();
  }

  ModelFlags model_;
  HttpOptions http_;
  EngineFlags engine_;
  int port_ = 8000, drain_seconds_ = 60;
  std::string api_key_;
  std::vector<std::string> served_names_, cors_origins_;
};

}  // namespace

std::unique_ptr<Command> make_serve_command() {
  return std::make_unique<ServeCommand>();
}

}  // namespace octavo
