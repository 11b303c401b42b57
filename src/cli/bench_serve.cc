// octavo bench serve: load on an OpenAI server, and what it makes of it.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <optional>

#include "cli/bench_serve_report.h"
#include "cli/commands.h"
#include "cli/local_server.h"
#include "cli/terminal.h"
#include "loadgen/load_generator.h"
#include "loadgen/schedule.h"
#include "loadgen/server_facts.h"
#include "loadgen/workload.h"

namespace octavo {
namespace {

constexpr int64_t kDefaultPrompts = 64, kDefaultConcurrency = 8, kMostPrompts = 1'000'000;

Result<void> check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail({.what = "a number is out of range",
               .where = flag,
               .found = std::to_string(value),
               .expected = fmt::format("{} to {}", low, high)});
}

class BenchServeCommand final : public Command {
 public:
  std::string_view name() const override { return "bench serve"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override {
    return "Load on an OpenAI server, or on a model served in this process: latencies, throughput, goodput";
  }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    model_.declare(flags, "URL|MODEL",
                   "A server, such as http://127.0.0.1:8000; or a model folder or .gguf file, served in this process");
    engine_.declare(flags);
    flags.group("Load");
    flags.option("concurrency,--max-concurrency", concurrency_,
                 "Requests at work at most: a closed loop, the next when one is answered (0: 8, or no limit with "
                 "--request-rate)");
    flags.option("request-rate", request_rate_,
                 "An open loop: this many requests a second, Poisson; latency counts from the scheduled time; inf: all "
                 "at once");
    flags.option("num-prompts", num_prompts_, "Requests (0: 64, or each of --dataset once)");
    flags.option("num-warmups", num_warmups_, "Short requests before, which are not measured");
    flags.option("timeout", timeout_, "Seconds after which a request counts as failed");
    flags.group("Requests");
    flags.option("endpoint", endpoint_, "/v1/completions (prompts of token ids) or /v1/chat/completions (of words)");
    flags.option("input-len", input_len_, "Tokens of a prompt, or words of a chat's; 64-256: any of these");
    flags.option("output-len", output_len_, "Most tokens of an answer; 64-256: any of these");
    flags.option("shared-prefix", shared_prefix_, "Further tokens (words), with which all prompts begin");
    flags.flag("ignore-eos", ignore_eos_, "Answers go on to --output-len (Octavo, vLLM)");
    flags.option("temperature", temperature_, "0: greedy");
    flags.option("seed", seed_, "Of prompts, lengths and the schedule");
    flags.option("dataset,--dataset-path", dataset_,
                 "JSONL with \"prompt\" or \"messages\", and \"output_tokens\" if it likes, instead of random prompts");
    flags.option("vocab-size", vocab_size_, "Token ids are any below this (0: those of plain text, from /tokenize)");
    flags.group("Server");
    flags.option("model", model_name_, "The model's name (default: the first that the server lists)");
    flags.option("api-key", api_key_, "The server's key");
    flags.option("ready-timeout", ready_timeout_, "Seconds to wait for a server that is not ready yet");
    flags.flag("insecure", insecure_, "Accept any TLS certificate");
    flags.group("Report");
    flags.option("slo,--goodput", slo_text_,
                 "Goodput: requests per second within these milliseconds, such as ttft:500,tpot:50,e2e:10000");
    flags.flag("detailed", detailed_, "With --json: the figures of each request, too");
    output_.declare(flags);
    given_ = flags.given();
  }

  Result<void> run() override {
    OCTAVO_TRY(check());
    raise_file_limit();
    std::unique_ptr<LocalServer> local;
    std::string url = model_.model;
    if (!looks_like_url(url)) {
      OCTAVO_TRY(engine_.check());
      OCTAVO_ASSIGN(local, LocalServer::start(model_, engine_));
      url = local->address();
    }
    OCTAVO_ASSIGN(const ServerAddress server, parse_server_url(url));
    OCTAVO_ASSIGN(const std::string listed, listed_model(server));
    shape_.model = model_name_.empty() ? listed : model_name_;
    OCTAVO_ASSIGN(const std::vector<std::string> bodies, requests(server));
    options_.interrupted = local ? &local->ended() : nullptr;
    if (rate_) options_.schedule = poisson_schedule(bodies.size(), *rate_, seed_ + 1);
    OCTAVO_TRY(warm_up(server));
    OCTAVO_ASSIGN(const std::vector<RequestRecord> records, measure(server, bodies));
    return report(server, local != nullptr, records);
  }

 private:
  Result<void> check() {
    OCTAVO_TRY(check_range("--concurrency", concurrency_, 0, 100'000));
    OCTAVO_TRY(check_range("--num-prompts", num_prompts_, 0, kMostPrompts));
    OCTAVO_TRY(check_range("--num-warmups", num_warmups_, 0, 1000));
    OCTAVO_TRY(check_range("--shared-prefix", shared_prefix_, 0, 10'000'000));
    OCTAVO_TRY(check_range("--vocab-size", vocab_size_, 0, int64_t{1} << 31));
    OCTAVO_TRY(check_range("--timeout", timeout_, 1, 1'000'000));
    OCTAVO_TRY(check_range("--ready-timeout", ready_timeout_, 0, 1'000'000));
    OCTAVO_ASSIGN(input_, parse_length_range(input_len_, "--input-len"));
    OCTAVO_ASSIGN(output_range_, parse_length_range(output_len_, "--output-len"));
    OCTAVO_ASSIGN(slo_, parse_slo(slo_text_, "--slo"));
    OCTAVO_TRY(check_rate());
    if (!endpoint_.starts_with('/') || !(endpoint_.ends_with("/completions")))
      return fail({.what = "not an endpoint that can be measured",
                   .where = "--endpoint",
                   .found = endpoint_,
                   .expected = "/v1/completions or /v1/chat/completions"});
    OCTAVO_TRY(check_uses());
    shape_ = {.chat = endpoint_.ends_with("/chat/completions"), .temperature = temperature_, .ignore_eos = ignore_eos_};
    if (concurrency_ == 0 && !rate_) concurrency_ = kDefaultConcurrency;
    options_ = {
        .endpoint = endpoint_,
        .concurrency = static_cast<size_t>(concurrency_),
        .connection = {.api_key = api_key_, .timeout_seconds = static_cast<double>(timeout_), .insecure = insecure_}};
    return {};
  }

  // Flags of a model that is served here beside the URL of one that is served already; of random requests beside given
  // ones.
  Result<void> check_uses() const {
    if (looks_like_url(model_.model)) {
      const std::string why = fmt::format(
          "the server at {} runs already; give it to that, or give a MODEL to be served "
          "in this process",
          model_.model);
      OCTAVO_TRY(given_.refuse({"quantization", "plan", "kv-cache-dtype", "k-dtype", "v-dtype", "kv-calibration",
                                "ignore", "override", "threads", "isa"},
                               why));
      OCTAVO_TRY(given_.refuse_group(EngineFlags::kGroup, why));
    }
    if (dataset_.empty()) return {};
    return given_.refuse({"input-len", "shared-prefix", "vocab-size"}, "--dataset brings its own prompts");
  }

  Result<void> check_rate() {
    if (request_rate_.empty()) return {};
    char* end = nullptr;
    rate_ = std::strtod(request_rate_.c_str(), &end);
    if (*end != '\0' || !(*rate_ > 0))
      return fail({.what = "not a rate",
                   .where = "--request-rate",
                   .found = request_rate_,
                   .expected = "requests per second above 0, or inf"});
    return {};
  }

  Result<std::string> listed_model(const ServerAddress& server) const {
    Result<std::string> listed = served_model(server, options_.connection, static_cast<double>(ready_timeout_));
    if (!listed && !model_name_.empty()) return std::string();  // a server need not list its models
    return listed;
  }

  Result<std::vector<std::string>> requests(const ServerAddress& server) const {
    const auto count = static_cast<size_t>(num_prompts_);
    if (!dataset_.empty()) return dataset_requests(dataset_, count, output_range_, seed_, shape_);
    SyntheticWorkload workload{.count = count > 0 ? count : kDefaultPrompts,
                               .input = input_,
                               .output = output_range_,
                               .shared_prefix = shared_prefix_,
                               .seed = seed_};
    if (vocab_size_ > 0) {
      for (int64_t id = 0; id < vocab_size_; ++id) workload.token_ids.push_back(id);
    } else if (!shape_.chat) {
      OCTAVO_ASSIGN(workload.token_ids, plain_token_ids(server, shape_.model, options_.connection));
    }
    return synthetic_requests(workload, shape_);
  }

  // Also where a wrong flag shows, before many requests fail of it.
  Result<void> warm_up(const ServerAddress& server) const {
    const std::vector<std::string> bodies(static_cast<size_t>(num_warmups_), warmup_request(shape_));
    LoadOptions options = options_;
    options.schedule.clear();
    options.concurrency = 1;
    OCTAVO_ASSIGN(const std::vector<RequestRecord> records,
                  generate_load(server, bodies, options, [](const RunProgress&) {}));
    for (const RequestRecord& record : records)
      if (!record.completed())
        return fail({.what = "a first request failed",
                     .where = server.text() + endpoint_,
                     .found = record.error,
                     .remedy = "see --model, --api-key, --endpoint; --num-warmups 0 goes on without it"});
    return {};
  }

  Result<std::vector<RequestRecord>> measure(const ServerAddress& server,
                                             const std::vector<std::string>& bodies) const {
    Progress progress("measuring", output_.json);
    return generate_load(server, bodies, options_, [&](const RunProgress& p) {
      std::string detail = fmt::format("{} at work, {:.0f} tok/s", p.at_work,
                                       p.seconds > 0 ? static_cast<double>(p.output_tokens) / p.seconds : 0.0);
      if (p.failed > 0) detail += fmt::format(", {} failed", p.failed);
      progress.update(static_cast<double>(p.done), static_cast<double>(p.total), detail);
    });
  }

  Result<void> report(const ServerAddress& server, bool in_process, std::span<const RequestRecord> records) const {
    const MeasuredLoad load = {.server = server.text(),
                               .model = shape_.model,
                               .endpoint = endpoint_,
                               .in_process = in_process,
                               .request_rate = rate_,
                               .concurrency = options_.concurrency,
                               .slo = slo_text_,
                               .seed = seed_,
                               .summary = summarize_load(records, slo_),
                               .records = records};
    if (load.summary.completed == 0)
      return fail({.what = fmt::format("none of {} requests completed", records.size()),
                   .where = load.server + endpoint_,
                   .found = failure_lines(load.summary, 5)});
    fmt::print("{}\n", output_.json ? measured_load_json(load, detailed_) : measured_load_text(load));
    return {};
  }

  ModelFlags model_;
  EngineFlags engine_;
  OutputOptions output_;
  GivenFlags given_;
  int64_t concurrency_ = 0, num_prompts_ = 0, num_warmups_ = 1, shared_prefix_ = 0, vocab_size_ = 0;
  int64_t timeout_ = 600, ready_timeout_ = 0;
  uint64_t seed_ = 0;
  float temperature_ = 0;
  std::string request_rate_, endpoint_ = "/v1/completions", input_len_ = "128", output_len_ = "128";
  std::string dataset_, model_name_, api_key_, slo_text_;
  bool ignore_eos_ = false, insecure_ = false, detailed_ = false;

  // From the flags, by check().
  std::optional<double> rate_;
  LengthRange input_, output_range_;
  Slo slo_;
  RequestShape shape_;
  LoadOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_bench_serve_command() {
  return std::make_unique<BenchServeCommand>();
}

}  // namespace octavo
