#include "evaluate/accept/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

// Of the file, but not gates: how a drop of a task is judged.
constexpr std::string_view kStandardErrors = "task_standard_errors", kItemsMin = "task_items_min";

std::string known_gates() {
  std::string names;
  for (const GateRow& row : gate_rows()) names += std::string(row.name) + ", ";
  return fmt::format("{}{}, {}", names, kStandardErrors, kItemsMin);
}

Result<double> limit_of(const std::string& name, const Json& value, std::string_view where) {
  const auto wrong = [&](std::string expected) {
    return fail({.what = fmt::format("the limit of gate \"{}\" is not one", name),
                 .where = std::string(where),
                 .found = value.dump(),
                 .expected = std::move(expected)});
  };
  if (!value.is_number()) return wrong("a number, or \"off\"");
  const auto limit = value.get<double>();
  if (!std::isfinite(limit) || limit < 0) return wrong("a number from 0");
  return limit;
}

// What is measured, as a gate of the report without its verdict.
Json gate_entry(const GateRow& row, const Json& figure) {
  Json entry = {
      {"gate", row.name}, {"title", row.title}, {"section", row.section}, {"side", row.is_max ? "max" : "min"}};
  if (const auto subject = figure.find("subject"); subject != figure.end()) entry["subject"] = *subject;
  for (const char* key : {"value", "standard_error"}) {
    const auto found = figure.find(key);
    if (found != figure.end() && found->is_number() && std::isfinite(found->get<double>())) entry[key] = *found;
  }
  return entry;
}

// What of the gates' settings concerns tasks alone; of another gate nothing does.
struct TaskRules {
  double standard_errors = 0, items_min = 0;
};

Json judged(const GateRow& row, const Json& figure, const std::optional<double>& limit, const TaskRules& rules) {
  Json entry = gate_entry(row, figure);
  if (!limit) {
    entry["status"] = "off";
    entry["reason"] = "switched off in the gates file";
    return entry;
  }
  entry["limit"] = *limit;
  if (!entry.contains("value")) {
    entry["status"] = "not computed";
    entry["reason"] = figure.value("why_not", figure.empty() ? "not measured" : "the figure is not a finite number");
    return entry;
  }
  if (figure.contains("items") && figure["items"].get<double>() < rules.items_min) {
    entry["status"] = "not computed";
    entry["reason"] = fmt::format("{} items are too few to judge a drop by: {} asks for {} (take more with --limit)",
                                  figure["items"].get<int64_t>(), kItemsMin, rules.items_min);
    return entry;
  }
  const double value = entry["value"].get<double>(), slack = rules.standard_errors * entry.value("standard_error", 0.0);
  const bool holds = row.is_max ? value <= *limit + slack : value >= *limit - slack;
  entry["status"] = holds ? "holds" : "fails";
  if (rules.standard_errors > 0) entry["standard_errors"] = rules.standard_errors;
  return entry;
}

}  // namespace

const std::vector<GateRow>& gate_rows() {
  using enum FigureUnit;
  static const std::vector<GateRow> rows = {
      {"memory_ratio_max", "memory_ratio", true, 1.0, kRatio, "Memory against the base", "ladder"},
      {"memory_bytes_max", "memory_bytes", true, {}, kBytes, "Memory", "ladder"},
      {"ttft_ratio_max", "ttft_ratio", true, 1.1, kRatio, "Time to first token against the base", "ladder"},
      {"ttft_seconds_max", "ttft_seconds", true, {}, kSeconds, "Time to first token", "ladder"},
      {"tpot_ratio_max", "tpot_ratio", true, 1.1, kRatio, "Time per output token against the base", "ladder"},
      {"tpot_seconds_max", "tpot_seconds", true, {}, kSeconds, "Time per output token", "ladder"},
      {"throughput_ratio_min", "throughput_ratio", false, 0.9, kRatio, "Throughput of a batch against the base",
       "ladder"},
      {"throughput_tokens_per_second_min",
       "throughput_tokens_per_second",
       false,
       {},
       kRate,
       "Throughput of a batch",
       "ladder"},
      {"prefill_tokens_per_second_min", "prefill_tokens_per_second", false, {}, kRate, "Prefill throughput", "ladder"},
      {"decode_tokens_per_second_min", "decode_tokens_per_second", false, {}, kRate, "Decode throughput", "ladder"},
      {"perplexity_change_max", "perplexity_change", true, 0.05, kChange, "Change of perplexity", "error-budget"},
      {"kl_mean_max", "kl_mean", true, 0.05, kNats, "Mean KL divergence from the base", "error-budget"},
      {"kl_p99_max", "kl_p99", true, {}, kNats, "KL divergence, 99th percentile", "error-budget"},
      {"same_top_min", "same_top", false, {}, kPercent, "Same most likely token", "error-budget"},
      {"task_drop_max", "task_drop", true, 0.01, kChange, "Drop of the task score", "tasks"},
      {"needle_lost_max", "needle_lost", true, 0.0, kCount, "Needles lost", "needle"},
  };
  return rows;
}

Gates default_gates() {
  Gates gates;
  for (const GateRow& row : gate_rows())
    if (row.standard) gates.limits.emplace(row.name, row.standard);
  return gates;
}

Result<Gates> parse_gates(std::string_view text, std::string_view where) {
  OCTAVO_ASSIGN(const Json json, parse_json(text, where));
  if (!json.is_object())
    return fail({.what = "a gates file is one JSON object",
                 .where = std::string(where),
                 .found = json.type_name(),
                 .expected = "for example {\"perplexity_change_max\": 0.03, \"needle_lost_max\": \"off\"}"});
  Gates gates = default_gates();
  for (const auto& [name, value] : json.items()) {
    if (name == kStandardErrors) {
      OCTAVO_ASSIGN(gates.task_standard_errors, limit_of(name, value, where));
      continue;
    }
    if (name == kItemsMin) {
      OCTAVO_ASSIGN(gates.task_items_min, limit_of(name, value, where));
      continue;
    }
    const std::string key = name;
    const auto& rows = gate_rows();
    if (std::none_of(rows.begin(), rows.end(), [&](const GateRow& row) { return row.name == key; }))
      return fail({.what = fmt::format("there is no gate \"{}\"", key),
                   .where = std::string(where),
                   .expected = known_gates()});
    if (value == "off") {
      gates.limits[key] = std::nullopt;
      continue;
    }
    OCTAVO_ASSIGN(gates.limits[key], limit_of(key, value, where));
  }
  return gates;
}

void judge(Json& report, const Gates& gates) {
  const Json measured = report.value("measured", Json::object());
  Json entries = Json::array();
  for (const GateRow& row : gate_rows()) {
    const auto limit = gates.limits.find(row.name);
    if (limit == gates.limits.end()) continue;
    const Json figure = measured.value(std::string(row.measure), Json::object());
    const TaskRules rules =
        row.measure == "task_drop" ? TaskRules{gates.task_standard_errors, gates.task_items_min} : TaskRules{};
    if (!figure.is_array()) {
      entries.push_back(judged(row, figure, limit->second, rules));
      continue;
    }
    for (const Json& each : figure) entries.push_back(judged(row, each, limit->second, rules));
  }
  int64_t held = 0, failed = 0, missing = 0, off = 0;
  for (const Json& entry : entries) {
    const std::string& status = entry["status"].get_ref<const std::string&>();
    held += status == "holds";
    failed += status == "fails";
    missing += status == "not computed";
    off += status == "off";
  }
  report["gates"] = std::move(entries);
  report["verdict"] = {{"accepted", failed == 0 && missing == 0 && held > 0},
                       {"judged", held + failed + missing},
                       {"held", held},
                       {"failed", failed},
                       {"not_computed", missing},
                       {"off", off}};
}

}  // namespace octavo
