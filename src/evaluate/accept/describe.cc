// What a report says of models, plans and settings.
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <map>

#include "evaluate/accept/accept_parts.h"
#include "evaluate/model_facts.h"
#include "precision/kv_format.h"

namespace octavo {
namespace {

// Formats with the number of modules.
Json plan_summary(const PrecisionPlan& plan) {
  std::map<std::string, int64_t> weights, activations, kv;
  for (const auto& [module, linear] : plan.linears) {
    ++weights[linear.weight.describe()];
    ++activations[linear.activation.describe()];
  }
  for (const KvPlan& layer : plan.kv) {
    const std::string k = describe_kv(layer.k, layer.k_options), v = describe_kv(layer.v, layer.v_options);
    ++kv[k == v ? k : fmt::format("K {}, V {}", k, v)];
  }
  return {{"scheme", plan.scheme},
          {"weights", count_text(weights)},
          {"activations", count_text(activations)},
          {"kv_cache", count_text(kv)}};
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

// A name for people: the folder's or the file's.
std::string model_name(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  return whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
}

Json side(const ModelSpec& spec, const PrecisionPlan& plan) {
  return {{"name", model_name(spec.path)}, {"path", spec.path.string()}, {"plan", plan_summary(plan)}};
}

}  // namespace

Json report_heading(const AcceptOptions& o, const Model& base, const PrecisionPlan& candidate) {
  const ModelConfig& config = base.config();
  Json tasks = Json::array();
  for (const AcceptTask& task : o.tasks)
    tasks.push_back(task.data.empty() ? task.name : task.name + "=" + task.data.filename().string());
  return {{"octavo_accept", 1},
          {"created", utc_now()},
          {"version", o.version},
          {"base", side(o.base, base.plan())},
          {"candidate", side(o.candidate, candidate)},
          {"model",
           {{"architecture", config.architecture},
            {"layers", config.num_layers},
            {"hidden_size", config.hidden_size},
            {"intermediate_size", config.intermediate_size},
            {"vocabulary", config.vocab_size},
            {"context", config.context_length()}}},
          {"machine",
           {{"cpu", cpu_features().model},
            {"isa", isa_name(base.isa())},
            {"threads", o.base.options.threads > 0 ? o.base.options.threads : available_cores()}}},
          {"settings",
           {{"text", o.text.filename().string()},
            {"context", o.windows.context},
            {"windows", o.windows.windows},
            {"prompt", o.speed.prompt},
            {"generate", o.speed.generate},
            {"repeat", o.speed.repeat},
            {"batch", o.batch},
            {"tasks", std::move(tasks)},
            {"limit", o.selection.limit},
            {"seed", o.selection.seed},
            {"command", o.command}}}};
}

Json run_identity(const AcceptOptions& o, const Model& base, const PlannedCheckpoint& candidate,
                  const std::string& text, const NeedleOptions& needle) {
  std::vector<std::string> data;
  for (const AcceptTask& task : o.tasks) data.push_back(task.name + " " + task.data.string());
  return {{"octavo", "sections of an acceptance run"},
          {"version", o.version},
          {"base", o.base.path.string()},
          {"base_files", model_fingerprint(o.base.path)},
          {"base_plan", plan_fingerprint(base)},
          {"candidate", o.candidate.path.string()},
          {"candidate_files", model_fingerprint(o.candidate.path)},
          {"candidate_plan", plan_fingerprint(candidate.plan, candidate.checkpoint)},
          {"isa", isa_name(base.isa())},
          {"threads", o.base.options.threads},
          {"text", text_hash({text})},
          {"windows", {o.windows.context, o.windows.windows}},
          {"speed", {o.speed.prompt, o.speed.generate, o.speed.repeat, o.batch}},
          {"tasks", text_hash(data)},
          {"selection", {o.selection.limit, o.selection.seed}},
          {"needle", {needle.lengths, needle.depths, needle.tries, needle.seed}}};
}

}  // namespace octavo
