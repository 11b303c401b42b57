// Server: listens first, serves when the engine is there, drains when told to stop.
#pragma once

#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/openai/api.h"
#include "server/text_engine.h"

namespace octavo {

class Server {
 public:
  // Listens; nothing is answered before run(). `api.page`: empty for the built-in one.
  static Result<std::unique_ptr<Server>> listen(const HttpOptions& http, ApiOptions api);
  ~Server();

  std::string address() const;
  // Any thread.
  void set_progress(double loaded);  // 0 to 1
  void set_engine(std::unique_ptr<TextEngine> engine);
  void stop();
  // Before run(): called on its thread when the server begins to stop, for whatever reason.
  void on_stop(std::function<void()> callback);
  // Serves until stop(), SIGINT or SIGTERM. A line to `log` every ten seconds under load.
  void run(std::function<void(const std::string& line)> log);

 private:
  Server();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
