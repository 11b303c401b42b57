#include "cli/serving.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/json.h"
#include "cli/terminal.h"
#include "engine/serving_memory.h"

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

void print_plan(Model& model, int64_t kv_tokens) {
  const LoadReport& report = model.decoder().report();
  const double kv_bytes = model.kv_geometry().bytes_per_token() * static_cast<double>(kv_tokens);
  fmt::print(stderr, "Scheme {}, {}, {} threads\n", model.plan().scheme, isa_name(model.isa()), model.pool().size());
  const GreedyHead* greedy = model.decoder().greedy_head();
  fmt::print(stderr, "Memory: weights {}{}, embedding {}, KV cache {} for {} tokens ({} per token)\n",
             human_bytes(static_cast<double>(report.linear_bytes + report.norm_bytes)),
             greedy == nullptr ? ""
                               : fmt::format(", INT8 copy of the head {} (--no-greedy-head)",
                                             human_bytes(static_cast<double>(greedy->bytes()))),
             human_bytes(static_cast<double>(report.embedding_bytes)), human_bytes(kv_bytes), kv_tokens,
             human_bytes(model.kv_geometry().bytes_per_token()));
}

// Where requests get fewer tokens than was asked for, or than the model can.
void tell_max_model_len(const Model& model, int64_t kv_tokens, int64_t asked) {
  const int64_t context = model.config().context_length();
  if (asked > context)
    fmt::print(stderr, "Note: --max-model-len {} is more than the model's context of {} tokens, which is the limit\n",
               asked, context);
  if (kv_tokens < std::min(context, asked > 0 ? asked : context))
    fmt::print(stderr,
               "Note: the KV cache holds {} tokens, so that no request may have more; --memory-limit gives it room\n",
               kv_tokens);
}

}  // namespace

void EngineFlags::declare(Flags& flags) {
  flags.group(kGroup);
  flags.option("max-model-len", max_model_len, "Most tokens of prompt and answer (0: what the model can)");
  flags.option("max-num-seqs", engine.max_num_seqs, "Most requests in a step");
  flags.option("max-num-batched-tokens", engine.max_num_batched_tokens, "Most tokens in a step");
  flags.option("memory-limit", memory_limit_, "Memory for weights, KV cache and scratch, such as 8GB");
  flags.option("gpu-memory-utilization", gpu_memory_utilization_,
               "Accepted for vLLM's sake: this share of the free memory, as if it were given with --memory-limit");
  greedy_head.declare(flags);
  flags.flag("no-prefix-cache,--no-enable-prefix-caching", no_prefix_cache_,
             "Do not keep the KV cache of prompts for later ones");
  flags.flag("enable-prefix-caching", prefix_cache_, "Accepted for vLLM's sake: it is on by itself");
  flags.option("chat-template", chat_template, "A file with the Jinja template to use instead of the model's");
  flags.option("dtype", dtype_, "Accepted for vLLM's sake: auto or bfloat16; formats are chosen with --quantization");
}

Result<void> EngineFlags::check() {
  if (engine.max_num_seqs < 1 || engine.max_num_batched_tokens < 1 || max_model_len < 0)
    return fail({.what = "a limit is out of range",
                 .where = "--max-num-seqs, --max-num-batched-tokens, --max-model-len",
                 .expected = "at least 1"});
  if (!memory_limit_.empty()) {
    OCTAVO_ASSIGN(engine.memory_limit, parse_bytes(memory_limit_, "--memory-limit"));
  }
  if (gpu_memory_utilization_ != 0.0f) {
    if (!(gpu_memory_utilization_ > 0.0f && gpu_memory_utilization_ <= 1.0f))
      return fail({.what = "not a share", .where = "--gpu-memory-utilization", .expected = "above 0, at most 1"});
    fmt::print(stderr,
               "Note: --gpu-memory-utilization on a CPU is a share of the machine's free memory; "
               "--memory-limit says it in bytes\n");
    if (engine.memory_limit == 0)
      engine.memory_limit = static_cast<int64_t>(gpu_memory_utilization_ * static_cast<double>(available_memory()));
  }
  if (no_prefix_cache_ && prefix_cache_)
    return fail(
        {.what = "the prefix cache cannot be both on and off", .where = "--enable-prefix-caching, --no-prefix-cache"});
  engine.prefix_cache = !no_prefix_cache_;
  if (!dtype_.empty()) {
    if (dtype_ != "auto" && dtype_ != "bfloat16")
      return fail({.what = "not a dtype that Octavo computes with",
                   .where = "--dtype",
                   .found = dtype_,
                   .expected = "auto or bfloat16",
                   .remedy = "choose the formats of weights and activations with --quantization"});
    fmt::print(stderr, "Note: --dtype {} changes nothing: sums are FP32, and --quantization chooses the formats\n",
               dtype_);
  }
  return {};
}

Result<void> expand_lists(std::vector<std::string>& values, const char* flag) {
  std::vector<std::string> all;
  for (const std::string& value : values) {
    if (!value.starts_with('[')) {
      all.push_back(value);
      continue;
    }
    const Result<Json> list = parse_json(value, flag);
    const auto is_text = [](const Json& json) { return json.is_string(); };
    if (!list || !list->is_array() || !std::all_of(list->begin(), list->end(), is_text))
      return fail({.what = "not a JSON list of strings", .where = flag, .found = value, .expected = "[\"a\", \"b\"]"});
    for (const Json& json : *list) all.push_back(json.get<std::string>());
  }
  values = std::move(all);
  return {};
}

std::vector<std::string> api_model_names(const std::string& model, const std::vector<std::string>& served_names) {
  if (!served_names.empty()) return served_names;
  std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  std::vector<std::string> names = {path.extension() == ".gguf" ? path.stem().string() : path.filename().string()};
  if (names.front() != model) names.push_back(model);
  return names;
}

Result<void> load_into(Server& server, const ModelFlags& flags, const EngineFlags& engine_flags,
                       const std::string& name) {
  const auto start = std::chrono::steady_clock::now();
  ModelOptions options{.greedy_head = !engine_flags.greedy_head.off};
  ServingOptions serving = engine_flags.engine;
  OCTAVO_TRY(flags.machine.apply(options));
  OCTAVO_ASSIGN(options.plan, flags.request());
  options.chat_template = engine_flags.chat_template;
  OCTAVO_ASSIGN(std::unique_ptr<Model> model, Model::load(flags.model, options, [&](LoadProgress progress) {
                  server.set_progress(progress.total > 0 ? static_cast<double>(progress.done) / progress.total : 0.0);
                }));
  serving.measure_roofline = true;
  OCTAVO_TRY(plan_kv_cache_tokens(*model, serving));
  auto engine = std::make_unique<ServingEngine>(*model, serving);
  print_plan(*model, engine->kv_cache_tokens());
  tell_max_model_len(*model, engine->kv_cache_tokens(), engine_flags.max_model_len);
  server.set_engine(make_text_engine(std::move(model), std::move(engine), engine_flags.max_model_len));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(stderr, "{} is ready at {} after {}\n", name, server.address(), human_seconds(seconds));
  return {};
}

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace octavo
