// octavo serve: the OpenAI API over one model.
#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "engine/serving_memory.h"
#include "server/server.h"

namespace octavo {
namespace {

// "8GB", "512MiB", "1.5g", "1000000": bytes; decimal units but for KiB, MiB, GiB.
Result<int64_t> parse_bytes(const std::string& text, const char* flag) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static const std::vector<std::pair<std::string_view, double>> kUnits = {
      {"", 1},     {"b", 1},    {"k", 1e3},   {"kb", 1e3},     {"m", 1e6},      {"mb", 1e6},     {"g", 1e9},
      {"gb", 1e9}, {"t", 1e12}, {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};
  for (const auto& [name, factor] : kUnits)
    if (end != text.c_str() && unit == name && value > 0 && value * factor < 0x1p60)
      return static_cast<int64_t>(value * factor);
  return fail(
      {.what = "not an amount of memory", .where = flag, .found = text, .expected = "for example 8GB or 512MiB"});
}

// As many open connections as the system lets a process have.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

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
    flags.group("Engine");
    flags.option("max-model-len", max_model_len_, "Most tokens of prompt and answer (0: what the model can)");
    flags.option("max-num-seqs", engine_.max_num_seqs, "Most requests in a step");
    flags.option("max-num-batched-tokens", engine_.max_num_batched_tokens, "Most tokens in a step");
    flags.option("memory-limit", memory_limit_, "Memory for weights, KV cache and scratch, such as 8GB");
    flags.option("gpu-memory-utilization", gpu_memory_utilization_,
                 "Accepted for vLLM's sake: this share of the free memory, as if it were given with --memory-limit");
    flags.flag("no-prefix-cache", no_prefix_cache_, "Do not keep the KV cache of prompts for later ones");
  }

  Result<void> run() override {
    OCTAVO_TRY(check());
    ApiOptions api{
        .model_names = model_names(), .api_key = api_key_, .cors_origins = cors_origins_, .version = kVersion};
    http_.port = static_cast<uint16_t>(port_);
    std::signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    OCTAVO_ASSIGN(const std::unique_ptr<Server> server, Server::listen(http_, std::move(api)));
    fmt::print(stderr, "Listening on {}\n", server->address());
    std::atomic<bool> loaded = false;
    Result<void> outcome;
    std::thread loader([&] {
      outcome = load(*server);
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
    if (engine_.max_num_seqs < 1 || engine_.max_num_batched_tokens < 1 || max_model_len_ < 0)
      return fail({.what = "a limit is out of range",
                   .where = "--max-num-seqs, --max-num-batched-tokens, --max-model-len",
                   .expected = "at least 1"});
    if (!memory_limit_.empty()) {
      OCTAVO_ASSIGN(engine_.memory_limit, parse_bytes(memory_limit_, "--memory-limit"));
    }
    if (gpu_memory_utilization_ != 0.0f) {
      if (!(gpu_memory_utilization_ > 0.0f && gpu_memory_utilization_ <= 1.0f))
        return fail({.what = "not a share", .where = "--gpu-memory-utilization", .expected = "above 0, at most 1"});
      fmt::print(stderr,
                 "Note: --gpu-memory-utilization on a CPU is a share of the machine's free memory; "
                 "--memory-limit says it in bytes\n");
      if (engine_.memory_limit == 0)
        engine_.memory_limit = static_cast<int64_t>(gpu_memory_utilization_ * static_cast<double>(available_memory()));
    }
    engine_.prefix_cache = !no_prefix_cache_;
    return {};
  }

  // What it is called, and the path as it was given, which vLLM's clients use.
  std::vector<std::string> model_names() const {
    if (!served_name_.empty()) return {served_name_};
    std::filesystem::path path = std::filesystem::path(model_.model).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();
    std::vector<std::string> names = {path.extension() == ".gguf" ? path.stem().string() : path.filename().string()};
    if (names.front() != model_.model) names.push_back(model_.model);
    return names;
  }

  Result<void> load(Server& server) {
    const auto start = std::chrono::steady_clock::now();
    ModelOptions options;
    OCTAVO_TRY(model_.machine.apply(options));
    OCTAVO_ASSIGN(options.plan, model_.request());
    OCTAVO_ASSIGN(std::unique_ptr<Model> model, Model::load(model_.model, options, [&](LoadProgress progress) {
                    server.set_progress(progress.total > 0 ? static_cast<double>(progress.done) / progress.total : 0.0);
                  }));
    OCTAVO_TRY(plan_kv_cache_tokens(*model, engine_));
    auto engine = std::make_unique<ServingEngine>(*model, engine_);
    print_plan(*model, engine->kv_cache_tokens());
    server.set_engine(make_text_engine(std::move(model), std::move(engine), max_model_len_));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print(stderr, "{} is ready at {} after {}\n", model_names().front(), server.address(), human_seconds(seconds));
    return {};
  }

  void print_plan(const Model& model, int64_t kv_tokens) const {
    const LoadReport& report = model.decoder().report();
    const double kv_bytes = model.kv_geometry().bytes_per_token() * static_cast<double>(kv_tokens);
    fmt::print(stderr, "Scheme {}, {}, {} threads\n", model.plan().scheme, isa_name(model.isa()),
               options_threads(model));
    fmt::print(stderr, "Memory: weights {}, embedding {}, KV cache {} for {} tokens ({} per token)\n",
               human_bytes(static_cast<double>(report.linear_bytes + report.norm_bytes)),
               human_bytes(static_cast<double>(report.embedding_bytes)), human_bytes(kv_bytes), kv_tokens,
               human_bytes(model.kv_geometry().bytes_per_token()));
  }
  static int options_threads(const Model& model) { return const_cast<Model&>(model).pool().size(); }

  ModelFlags model_;
  HttpOptions http_;
  ServingOptions engine_;
  int port_ = 8000;
  int64_t max_model_len_ = 0;
  std::string api_key_, served_name_, memory_limit_;
  std::vector<std::string> cors_origins_;
  float gpu_memory_utilization_ = 0.0f;
  bool no_prefix_cache_ = false;
};

}  // namespace

std::unique_ptr<Command> make_serve_command() {
  return std::make_unique<ServeCommand>();
}

}  // namespace octavo
