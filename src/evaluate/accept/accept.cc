#include "evaluate/accept/accept.h"

#include <fmt/format.h>

#include <optional>

#include "base/file.h"
#include "evaluate/accept/accept_parts.h"
#include "evaluate/accept/scheme_summaries.h"
#include "evaluate/compare_json.h"
#include "evaluate/section_log.h"

namespace octavo {
namespace {

constexpr const char* kSections = "sections.jsonl";

std::string items_file(size_t task, std::string_view side) {
  return fmt::format("items-{}-{}.jsonl", task, side);
}

class AcceptRun {
 public:
  AcceptRun(const AcceptOptions& options, const AcceptProgress& progress) : o_(options), progress_(progress) {}

  Result<Json> run() {
    OCTAVO_TRY(prepare());
    Json report = report_heading(o_, *base_, candidate_->plan);
    OCTAVO_ASSIGN(report["ladder"], ladder());
    base_.reset();  // from here on what is measured loads its own
    if (!o_.text.empty()) OCTAVO_TRY(quality(report));
    OCTAVO_TRY(pairs(report));
    if (sensitivity_) {
      OCTAVO_ASSIGN(report["sensitivity"], parse_json(sensitivity_text(*sensitivity_), o_.sensitivity.string()));
      report["sensitivity_summary"] = scheme_summaries(*sensitivity_);
    }
    report["measured"] = measured_figures(report);
    return report;
  }

 private:
  // Everything that can be wrong with what was asked for, before anything long.
  Result<void> prepare() {
    for (const AcceptTask& task : o_.tasks) {
      OCTAVO_ASSIGN(Task loaded, load_task(task.name, task.data, o_.selection));
      tasks_.push_back(std::move(loaded));
    }
    if (!o_.text.empty()) {
      OCTAVO_ASSIGN(text_, read_flag_file("--text", o_.text));
    }
    OCTAVO_ASSIGN(candidate_, open_planned(o_.candidate.path, o_.candidate.options));
    OCTAVO_ASSIGN(rungs_, ladder_of(o_.base, o_.candidate));
    if (!o_.sensitivity.empty()) {
      OCTAVO_ASSIGN(const Checkpoint base, Checkpoint::open(o_.base.path));
      OCTAVO_ASSIGN(sensitivity_, read_sensitivity(o_.sensitivity));
      OCTAVO_TRY(check_made_for(sensitivity_->model, base.config().shape(), "the sensitivity file", o_.sensitivity));
    }
    progress("loading the base", 0, 1);
    OCTAVO_ASSIGN(base_, Model::load(o_.base.path, o_.base.options));
    const Isa isa = base_->isa();
    const std::string slow = slow_formats(candidate_->plan, candidate_->checkpoint.config().linear_modules(), isa);
    if (!slow.empty()) candidate_why_not_ = fmt::format("no fast kernel for {} on {}", slow, isa_name(isa));
    OCTAVO_TRY(check_speed());
    OCTAVO_TRY(check_needle_options(base_->config(), o_.needle));
    for (const ModelConfig* config : {&base_->config(), &candidate_->checkpoint.config()})
      for (const Task& task : tasks_) OCTAVO_TRY(check_task(*config, task));
    if (!o_.text.empty()) {
      OCTAVO_TRY(cut_windows(*base_, text_, o_.windows));
      OCTAVO_TRY(choose_needles());
    }
    stages_ = static_cast<int>(rungs_.size() - 1 + (o_.text.empty() ? 0 : 1) +
                               2 * (tasks_.size() + (needle_.lengths.empty() ? 0 : 1)));
    return open_log();
  }

  Result<void> check_speed() const {
    const int64_t context = base_->config().context_length(), tokens = o_.speed.prompt + o_.speed.generate;
    if (o_.speed.repeat < 1 || tokens <= context) return {};
    return fail({.what = "the measured text is longer than the model's context",
                 .where = "--prompt and --generate",
                 .found = fmt::format("{} tokens", tokens),
                 .expected = fmt::format("at most {}", context)});
  }

  Result<void> choose_needles() {
    needle_ = o_.needle;
    const int64_t context = base_->config().context_length();
    const std::vector<TokenId> haystack = base_->tokenizer().encode(text_, false);
    const bool asked = !needle_.lengths.empty();
    if (!asked) needle_.lengths = {1024, 2048, 4096, 8192};
    std::vector<int64_t> fitting;
    for (const int64_t length : needle_.lengths) {
      if (length > context) continue;  // not asked for: these were checked
      auto span = needle_span(*base_, haystack, length, 50, "Lisbon", "12345");
      if (!span && !asked) continue;
      if (!span) {
        Error error = std::move(span).error();
        if (error.where.empty()) error.where = "--needle-lengths";
        error.remedy = "give a longer --text, or other --needle-lengths";
        return fail(std::move(error));
      }
      fitting.push_back(length);
    }
    needle_.lengths = fitting;
    return {};
  }

  Result<void> open_log() {
    std::error_code error;
    std::filesystem::create_directories(o_.unfinished, error);
    if (error)
      return fail(
          {.what = "cannot make the report's folder", .where = o_.unfinished.string(), .found = error.message()});
    auto log = SectionLog::open(o_.unfinished / kSections, run_identity(o_, *base_, *candidate_, text_, needle_));
    if (!log) return fail(of_the_folder(std::move(log).error()));
    log_.emplace(std::move(*log));
    return {};
  }

  // An error of a log names no flag that we lack.
  Error of_the_folder(Error wrong) const {
    wrong.remedy = wrong.remedy.starts_with("wait")
                       ? "wait for it to end, or give another --out"
                       : fmt::format("give another --out, or remove {} to begin again", o_.unfinished.string());
    return wrong;
  }

  // What cannot be measured is a "why_not" in its place. Error: the log's alone.
  Result<Json> or_reason(Result<Json> measured) const {
    if (measured) return measured;
    if (log_->failure()) return fail(of_the_folder(*log_->failure()));
    return Json{{"why_not", measured.error().line()}};
  }

  void progress(std::string_view stage, int64_t done, int64_t total) const {
    if (progress_) progress_(stage, done, total);
  }
  std::string stage(const std::string& what) const { return fmt::format("[{}/{}] {}", stage_, stages_, what); }
  void begin_stage() { ++stage_; }

  // One object per rung: memory, speed and ratios; quality() adds the rest.
  Result<Json> ladder() {
    Json out = Json::array();
    Json base_row = {{"title", "base"}};
    std::vector<Json> rows;
    for (size_t i = 1; i < rungs_.size(); ++i) {
      const LadderRung& rung = rungs_[i];
      begin_stage();
      const bool candidate = i + 1 == rungs_.size();
      Json row = {{"title", rung.title}, {"formats", rung.formats}, {"part", rung.part}};
      const std::string why_not = candidate && !candidate_why_not_.empty() ? candidate_why_not_ : rung.why_not;
      if (!why_not.empty()) {
        row["why_not"] = why_not;
        rows.push_back(std::move(row));
        continue;
      }
      const std::string label = stage(fmt::format("speed: {}", rung.title));
      OCTAVO_ASSIGN(const Json measured, section(&*log_, fmt::format("rung {}", rung.title), [&] {
                      return measure_rung(*base_, rung.spec, o_.speed, candidate ? o_.batch : 0,
                                          [&](int64_t done, int64_t total) { progress(label, done, total); });
                    }));
      row.update(measured["memory"]);
      row["memory_ratio"] = row["memory_bytes"].get<double>() / measured["base_memory"]["memory_bytes"].get<double>();
      base_row.update(measured["base_memory"]);
      if (measured.contains("speed")) {
        row.update(measured["speed"]);
        row.update(measured["ratios"]);
        base_row.update(measured["base_speed"]);
      }
      rows.push_back(std::move(row));
    }
    out.push_back(std::move(base_row));
    for (Json& row : rows) out.push_back(std::move(row));
    return out;
  }

  Result<Json> budget_rows(const std::string& label) {
    const auto report = [&](std::string_view part, int64_t done, int64_t total) {
      progress(fmt::format("{}, {}", label, part), done, total);
    };
    OCTAVO_ASSIGN(const std::vector<BudgetRow> rows,
                  error_budget(o_.base, o_.candidate, text_, o_.windows, report, &*log_));
    return budget_json(rows);
  }

  Result<Json> candidate_quality(const std::string& label) {
    OCTAVO_ASSIGN(const std::unique_ptr<Model> base, Model::load(o_.base.path, o_.base.options));
    OCTAVO_ASSIGN(const std::unique_ptr<Model> candidate, Model::load(o_.candidate.path, o_.candidate.options));
    OCTAVO_ASSIGN(const CompareResult result,
                  compare(*base, *candidate, text_, o_.windows,
                          [&](int64_t done, int64_t total, double) { progress(label, done, total); }));
    return compare_json(result);
  }

  // "error_budget" and "quality" (the candidate as a whole), and the ladder's share of them.
  Result<void> quality(Json& report) {
    begin_stage();
    if (!candidate_why_not_.empty()) {
      report["quality"] = {{"why_not", candidate_why_not_}};
      report["error_budget"] = {{"why_not", candidate_why_not_}};
      return {};
    }
    const std::string label = stage("error budget");
    OCTAVO_ASSIGN(report["error_budget"], or_reason(budget_rows(label)));
    const Json& rows = report["error_budget"];
    if (rows.is_array() && !rows.empty() && rows.back()["part"] == "all") {
      Json whole = rows.back();
      report["quality"] = std::move(whole);
    } else {
      OCTAVO_ASSIGN(report["quality"],
                    or_reason(section(&*log_, "quality", [&] { return candidate_quality(stage("quality")); })));
    }
    spread_over_ladder(report);
    return {};
  }

  static void spread_over_ladder(Json& report) {
    constexpr const char* kShared[] = {"perplexity", "perplexity_change", "perplexity_change_standard_error",
                                       "kl_mean"};
    for (Json& row : report["ladder"]) {
      const std::string part = row.value("part", "");
      const Json* source = part == "all" ? &report["quality"] : nullptr;
      if (report["error_budget"].is_array())
        for (const Json& entry : report["error_budget"])
          if (entry["part"] == part) source = &entry;
      for (const char* key : kShared)
        if (source != nullptr && source->contains(key)) row[key] = (*source)[key];
    }
    if (report["quality"].contains("base_perplexity"))
      report["ladder"][0]["perplexity"] = report["quality"]["base_perplexity"];
  }

  // Tasks and needles: first all of the base, then all of the candidate, so that one model is loaded at a time.
  struct SideResults {
    std::vector<Result<TaskResult>> tasks;
    Json needles;  // cells, or a "why_not"
  };

  Result<void> pairs(Json& report) {
    if (!candidate_why_not_.empty()) {
      for (const Task& task : tasks_) report["tasks"].push_back({{"name", task.name}, {"why_not", candidate_why_not_}});
      if (!o_.text.empty()) report["needle"] = {{"why_not", candidate_why_not_}};
      return {};
    }
    if (tasks_.empty() && needle_.lengths.empty()) {
      if (!o_.text.empty()) report["needle"] = {{"why_not", "no length fits the model's context and the text"}};
      return {};
    }
    OCTAVO_ASSIGN(const SideResults base, one_side(o_.base, "base"));
    OCTAVO_ASSIGN(const SideResults candidate, one_side(o_.candidate, "candidate"));
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const Error* wrong =
          !base.tasks[i] ? &base.tasks[i].error() : (!candidate.tasks[i] ? &candidate.tasks[i].error() : nullptr);
      report["tasks"].push_back(wrong != nullptr ? Json{{"name", tasks_[i].name}, {"why_not", wrong->line()}}
                                                 : paired_task(tasks_[i], *base.tasks[i], *candidate.tasks[i]));
    }
    if (o_.text.empty()) return {};
    if (needle_.lengths.empty())
      report["needle"] = {{"why_not", "no length fits the model's context and the text"}};
    else if (base.needles.is_object() || candidate.needles.is_object())  // a "why_not"
      report["needle"] = base.needles.is_object() ? base.needles : candidate.needles;
    else
      report["needle"] = paired_needles(needle_, base.needles, candidate.needles);
    return {};
  }

  Result<SideResults> one_side(const ModelSpec& spec, const std::string& name) {
    progress(fmt::format("loading the {}", name), 0, 1);
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, Model::load(spec.path, spec.options));
    SideResults out;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      begin_stage();
      const std::string label = stage(fmt::format("{}: {}", tasks_[i].name, name));
      const TaskOptions options{.version = o_.version};
      auto log = ItemLog::open(o_.unfinished / items_file(i, name), task_identity(*model, tasks_[i], options));
      if (!log) return fail(of_the_folder(std::move(log).error()));
      auto result = run_task(*model, tasks_[i], options, &*log,
                             [&](int64_t done, int64_t total) { progress(label, done, total); });
      if (log->failure()) return fail(of_the_folder(*log->failure()));
      out.tasks.push_back(std::move(result));
    }
    if (needle_.lengths.empty()) return out;
    begin_stage();
    const std::string label = stage("needles: " + name);
    const auto cells = [&]() -> Result<Json> {
      OCTAVO_ASSIGN(const std::vector<NeedleCell> grid,
                    needle_grid(
                        *model, text_, needle_, [&](int64_t done, int64_t total) { progress(label, done, total); },
                        &*log_, "needles " + name));
      return needle_cells(grid);
    };
    OCTAVO_ASSIGN(out.needles, or_reason(cells()));
    return out;
  }

  const AcceptOptions& o_;
  const AcceptProgress& progress_;
  std::vector<Task> tasks_;
  std::string text_;
  std::optional<Sensitivity> sensitivity_;
  std::optional<PlannedCheckpoint> candidate_;
  std::vector<LadderRung> rungs_;
  NeedleOptions needle_;
  std::string candidate_why_not_;
  std::unique_ptr<Model> base_;
  std::optional<SectionLog> log_;
  int stage_ = 0, stages_ = 0;
};

}  // namespace

Result<Json> measure_acceptance(const AcceptOptions& options, const AcceptProgress& progress) {
  return AcceptRun(options, progress).run();
}

void remove_unfinished(const AcceptOptions& options) {
  std::error_code ignored;  // what stays does no harm
  std::filesystem::remove(options.unfinished / kSections, ignored);
  for (size_t i = 0; i < options.tasks.size(); ++i)
    for (const char* side : {"base", "candidate"})
      std::filesystem::remove(options.unfinished / items_file(i, side), ignored);
  std::filesystem::remove(options.unfinished, ignored);  // where it is empty
}

}  // namespace octavo
