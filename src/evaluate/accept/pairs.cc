// Base and candidate side by side: tasks item by item, needles cell by cell; and what the gates take of it all.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evaluate/accept/accept_parts.h"
#include "evaluate/compare_json.h"

namespace octavo {
namespace {

// The field of a record that a metric averages.
std::string field_of(const std::string& metric) {
  return metric == "perplexity" ? "loglikelihood" : metric;
}

// The difference's standard error is paired, item by item. A perplexity is exp(-mean log-likelihood): by the delta
// method an item moves it by the perplexity times its own log-likelihood, with either model's factor.
Json metric_json(const TaskMetric& base, const TaskMetric& candidate, const TaskResult& base_result,
                 const TaskResult& result) {
  const bool perplexity = base.name == "perplexity";
  const double factor = perplexity ? candidate.value : 1, base_factor = perplexity ? base.value : 1;
  const std::string field = field_of(base.name);
  std::vector<double> differences;
  for (size_t i = 0; i < result.records.size(); ++i)
    differences.push_back(factor * result.records[i].at(field).get<double>() -
                          base_factor * base_result.records[i].at(field).get<double>());
  return {{"name", base.name},
          {"base", base.value},
          {"base_standard_error", number_or_null(base.standard_error)},
          {"candidate", candidate.value},
          {"candidate_standard_error", number_or_null(candidate.standard_error)},
          {"difference", candidate.value - base.value},
          {"difference_standard_error", number_or_null(mean_error(differences).standard_error)}};
}

const Json* figure_at(const Json& report, const char* pointer) {
  const Json::json_pointer at(pointer);
  return report.contains(at) ? &report.at(at) : nullptr;
}

// {"value", "standard_error"} of two keys, or why there is none.
Json figure(const Json& part, const char* key, const char* error_key, const std::string& otherwise) {
  if (!part.is_object() || part.contains("why_not"))
    return {{"why_not", part.is_object() ? part.value("why_not", otherwise) : otherwise}};
  const auto value = part.find(key);
  if (value == part.end()) return {{"why_not", otherwise}};
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    return {{"why_not", "the measured figure is not a finite number"}};
  Json out = {{"value", *value}};
  if (error_key != nullptr && part.contains(error_key)) out["standard_error"] = part[error_key];
  return out;
}

Json task_figures(const Json& report) {
  const Json* tasks = figure_at(report, "/tasks");
  if (tasks == nullptr || tasks->empty()) return {{"why_not", "no task was given (--task NAME=DATA.jsonl)"}};
  Json figures = Json::array();
  for (const Json& task : *tasks) {
    Json entry = {{"subject", task["name"]}};
    if (task.contains("items")) entry["items"] = task["items"];
    if (task.contains("why_not")) entry["why_not"] = task["why_not"];
    const std::string headline = task.value("headline", "");
    if (!entry.contains("why_not") && headline.empty()) entry["why_not"] = "the task's answers are not scored";
    for (const Json& metric : task.value("metrics", Json::array())) {
      if (metric["name"] != headline) continue;
      entry["value"] = -metric["difference"].get<double>();
      entry["standard_error"] = metric["difference_standard_error"];
    }
    figures.push_back(std::move(entry));
  }
  return figures;
}

Json needle_figure(const Json& report) {
  const Json* needle = figure_at(report, "/needle");
  const std::string no_text = "no text was given (--text FILE)";
  if (needle != nullptr && needle->value("base_found", -1) == 0)
    return {{"why_not", "the base finds no needle, so none can be lost: try shorter --needle-lengths"}};
  return figure(needle == nullptr ? Json() : *needle, "lost", nullptr, no_text);
}

}  // namespace

std::string headline_metric(const Task& task) {
  if (task.kind != TaskKind::kGeneration) return "acc";
  switch (task.match) {
    case AnswerMatch::kGsm8k:
      return "exact_match_flexible";
    case AnswerMatch::kExact:
      return "exact_match";
    case AnswerMatch::kContains:
      return "contains";
    case AnswerMatch::kNone:
      break;
  }
  return {};
}

Json paired_task(const Task& task, const TaskResult& base, const TaskResult& candidate) {
  Json metrics = Json::array(), lost = Json::array(), won = Json::array();
  for (size_t i = 0; i < base.metrics.size(); ++i)
    metrics.push_back(metric_json(base.metrics[i], candidate.metrics[i], base, candidate));
  const std::string headline = headline_metric(task);
  for (size_t i = 0; !headline.empty() && i < task.items.size(); ++i) {
    const double before = base.records[i].at(headline).get<double>(),
                 after = candidate.records[i].at(headline).get<double>();
    if (after < before) lost.push_back(task.items[i].id);
    if (after > before) won.push_back(task.items[i].id);
  }
  return {{"name", task.name},
          {"items", task.items.size()},
          {"headline", headline},
          {"metrics", std::move(metrics)},
          {"lost_count", lost.size()},
          {"won_count", won.size()},
          {"lost", std::move(lost)},
          {"won", std::move(won)},
          {"truncated", candidate.truncated},
          {"base_errors", base.errors},
          {"candidate_errors", candidate.errors}};
}

Json paired_needles(const NeedleOptions& options, const Json& base, const Json& candidate) {
  Json cells = Json::array();
  int64_t base_found = 0, found = 0, lost = 0, gained = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const auto before = base[i]["found"].get<int64_t>(), after = candidate[i]["found"].get<int64_t>();
    base_found += before;
    found += after;
    lost += std::max<int64_t>(0, before - after);
    gained += std::max<int64_t>(0, after - before);
    Json cell = {{"length", base[i]["length"]}, {"depth", base[i]["depth"]}};
    for (const char* key : {"found", "logprob", "worst_rank"}) {
      cell[fmt::format("base_{}", key)] = base[i][key];
      cell[fmt::format("candidate_{}", key)] = candidate[i][key];
    }
    cells.push_back(std::move(cell));
  }
  return {{"lengths", options.lengths},
          {"depths", options.depths},
          {"tries", options.tries},
          {"seed", options.seed},
          {"needles", static_cast<int64_t>(base.size()) * options.tries},
          {"base_found", base_found},
          {"candidate_found", found},
          {"lost", lost},
          {"gained", gained},
          {"cells", std::move(cells)}};
}

Json measured_figures(const Json& report) {
  const Json& candidate = report.at("ladder").back();
  const auto of_rung = [&](const char* key) {
    return figure(candidate, key, nullptr, "speed was not measured (--repeat 0)");
  };
  Json measured = Json::object();
  for (const char* key :
       {"memory_ratio", "memory_bytes", "ttft_ratio", "ttft_seconds", "tpot_ratio", "tpot_seconds",
        "prefill_tokens_per_second", "decode_tokens_per_second", "throughput_ratio", "throughput_tokens_per_second"})
    measured[key] = of_rung(key);
  const Json* quality = figure_at(report, "/quality");
  const Json none = quality == nullptr ? Json() : *quality;
  const std::string no_text = "no text was given (--text FILE)";
  measured["perplexity_change"] = figure(none, "perplexity_change", "perplexity_change_standard_error", no_text);
  measured["kl_mean"] = figure(none, "kl_mean", "kl_standard_error", no_text);
  measured["kl_p99"] = figure(none, "kl_p99", nullptr, no_text);
  measured["same_top"] = figure(none, "same_top", nullptr, no_text);
  measured["task_drop"] = task_figures(report);
  measured["needle_lost"] = needle_figure(report);
  return measured;
}

}  // namespace octavo
