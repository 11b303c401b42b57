// octavo evaluate MODEL --task T: accuracy and perplexity on sets of questions.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "evaluate/compare_json.h"
#include "evaluate/run_task.h"

namespace octavo {
namespace {

Result<TaskOptions> task_options(const EvaluateFlags& flags) {
  TaskOptions options{.add_special = flags.add_special, .raw = flags.raw, .version = kVersion};
  if (flags.shots == 0) {
    OCTAVO_TRY(flags.given.refuse({"shots-from"}, "it goes with --shots N"));
    return options;
  }
  if (flags.shots < 0 || flags.shots_from.empty())
    return fail({.what = "solved examples need a number and their data",
                 .where = flags.shots < 0 ? "--shots" : "--shots-from",
                 .expected = "--shots N --shots-from FILE.jsonl"});
  OCTAVO_ASSIGN(const Task examples, load_task(flags.task, flags.shots_from, {.limit = flags.shots}));
  if (static_cast<int64_t>(examples.items.size()) < flags.shots)
    return fail({.what = "there are fewer solved examples than asked for",
                 .where = "--shots",
                 .found = fmt::format("{} in {}", examples.items.size(), flags.shots_from),
                 .expected = fmt::format("{}", flags.shots)});
  options.examples = few_shot_examples(examples);
  return options;
}

Result<void> write_files(const EvaluateFlags& flags, const TaskResult& result) {
  if (!flags.items_out.empty()) OCTAVO_TRY(write_json_lines(flags.items_out, result.records));
  if (flags.out.empty()) return {};
  std::vector<Json> answers;
  for (const Json& record : result.records)
    answers.push_back({{"task_id", record["id"]}, {"completion", record.value("completion", "")}});
  return write_json_lines(flags.out, answers);
}

Json json_of(const EvaluateFlags& flags, const Task& task, const Model& model, const TaskResult& result) {
  Json metrics = Json::object();
  for (const TaskMetric& metric : result.metrics)
    metrics[metric.name] = {{"value", metric.value}, {"standard_error", number_or_null(metric.standard_error)}};
  return {{"task", task.name},
          {"items", task.items.size()},
          {"metrics", metrics},
          {"truncated", result.truncated},
          {"errors", result.errors},
          {"shots", flags.shots},
          {"seed", flags.selection.seed},
          {"resumed", result.resumed},
          {"seconds", result.seconds},
          {"scheme", model.plan().scheme},
          {"isa", isa_name(model.isa())}};
}

}  // namespace

Result<void> evaluate_task(const EvaluateFlags& flags) {
  OCTAVO_ASSIGN(Task task, load_task(flags.task, flags.data, flags.selection));
  if (flags.max_tokens > 0) task.max_tokens = flags.max_tokens;
  if (task.kind != TaskKind::kGeneration)
    OCTAVO_TRY(flags.given.refuse({"out", "max-tokens", "raw"}, fmt::format("task {} generates nothing", task.name)));
  OCTAVO_ASSIGN(const TaskOptions options, task_options(flags));
  OCTAVO_ASSIGN(const std::unique_ptr<Model> model, flags.model.load(flags.output.json));
  std::optional<ItemLog> log;
  if (!flags.resume.empty()) {
    OCTAVO_ASSIGN(ItemLog opened, ItemLog::open(flags.resume, task_identity(*model, task, options)));
    log.emplace(std::move(opened));
  }
  Result<TaskResult> measured = fail({});
  {
    Progress progress(task.name, flags.output.json);
    measured = run_task(*model, task, options, log ? &*log : nullptr, [&](int64_t done, int64_t total) {
      progress.update(static_cast<double>(done), static_cast<double>(total),
                      fmt::format("{} of {} items", done, total));
    });
  }
  OCTAVO_ASSIGN(const TaskResult result, std::move(measured));
  OCTAVO_TRY(write_files(flags, result));
  if (flags.output.json) {
    fmt::print("{}\n", json_of(flags, task, *model, result).dump(2));
    return {};
  }
  fmt::print("{}: {} items", task.name, task.items.size());
  if (result.resumed > 0) fmt::print(" ({} from {})", result.resumed, flags.resume);
  fmt::print("; {:.1f} s\n", result.seconds);
  if (result.truncated > 0)
    fmt::print("{} prompts lost their beginning: with the answer they are longer than the model's context\n",
               result.truncated);
  if (result.errors > 0) fmt::print("{} prompts were refused and count as wrong\n", result.errors);
  Table table({"metric", "value", "standard error"});
  for (const TaskMetric& metric : result.metrics)
    table.add({metric.name, fmt::format("{:.4f}", metric.value),
               std::isfinite(metric.standard_error) ? fmt::format("{:.4f}", metric.standard_error) : "-"});
  if (!result.metrics.empty()) fmt::print("{}", table.text());
  return {};
}

}  // namespace octavo
