// What `serve` and `bench serve MODEL` share: the engine's flags, and a model brought up behind a Server.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "engine/serving.h"
#include "server/server.h"

namespace octavo {

struct EngineFlags {
  static constexpr const char* kGroup = "Engine";
  ServingOptions engine;  // complete after check()
  int64_t max_model_len = 0;
  GreedyHeadFlag greedy_head;
  void declare(Flags& flags);
  Result<void> check();
  std::string chat_template;  // a file, instead of the model's

 private:
  std::string memory_limit_;
  float gpu_memory_utilization_ = 0.0f;
  bool no_prefix_cache_ = false, prefix_cache_ = false;
  std::string dtype_;
};

// Takes the values that are JSON lists of strings, ["a", "b"], apart.
Result<void> expand_lists(std::vector<std::string>& values, const char* flag);

// The model's names in the API: `served_names` if there are any; else what its folder or file is called, and the path
// as it was given, which vLLM's clients use.
std::vector<std::string> api_model_names(const std::string& model, const std::vector<std::string>& served_names);

// Loads the model and hands it to the server, which then answers. A few lines on stderr say what was loaded and where
// it is ready.
Result<void> load_into(Server& server, const ModelFlags& model, const EngineFlags& engine, const std::string& name);

// As many open connections as the system lets a process have.
void raise_file_limit();

}  // namespace octavo
