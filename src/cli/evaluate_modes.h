// What `octavo evaluate` can do: one function per mode, each in the file of its name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "evaluate/error_budget.h"
#include "evaluate/perplexity.h"
#include "evaluate/section_log.h"
#include "evaluate/tasks/task.h"

namespace octavo {

struct EvaluateFlags {
  GivenFlags given;
  ModelFlags model;
  OutputOptions output;
  std::string text;
  PerplexityOptions windows;

  std::string against;  // a model folder; empty: the same one
  PlanRequest against_plan;
  std::vector<std::string> against_overrides;
  std::string against_isa, against_plan_file;
  bool error_budget = false;

  std::string task, data, items_out, resume, shots_from, out;
  TaskSelection selection;
  int64_t shots = 0, max_tokens = 0;
  bool raw = false, add_special = false;

  bool needle = false, kv_table = false, boundary = false;
  std::string lengths = "1024,2048,4096,8192", depths = "0,25,50,75,100", kv_dtypes, contexts, answers, diff;
  int64_t tries = 1;

  bool compares() const {
    return !against.empty() || !against_isa.empty() || !against_overrides.empty() || !against_plan.scheme.empty() ||
           !against_plan_file.empty() || !against_plan.kv_cache_dtype.empty() || !against_plan.k_dtype.empty() ||
           !against_plan.v_dtype.empty() || !against_plan.ignore.empty();
  }
};

Result<void> evaluate_perplexity(const EvaluateFlags& flags);
Result<void> evaluate_against(const EvaluateFlags& flags);
Result<void> evaluate_task(const EvaluateFlags& flags);
Result<void> evaluate_needle(const EvaluateFlags& flags);
Result<void> evaluate_kv_table(const EvaluateFlags& flags);
Result<void> evaluate_answers(const EvaluateFlags& flags);

// MODEL with the command's flags.
Result<ModelSpec> model_spec(const EvaluateFlags& flags);

// "1024,2048"
Result<std::vector<int64_t>> parse_numbers(const std::string& text, const std::string& flag);
std::vector<std::string> split_list(const std::string& text);
// What every mode that writes lines of JSON uses.
Result<void> write_json_lines(const std::string& path, const std::vector<Json>& lines);
// The log of --resume for a mode whose finished parts are kept in one; nothing without the flag. `settings`: what the
// results depend on beside the models and the text.
Result<std::optional<SectionLog>> open_sections(const EvaluateFlags& flags, std::string_view mode,
                                                const std::vector<ModelSpec>& models, std::string_view text,
                                                const Json& settings);
inline SectionLog* address(std::optional<SectionLog>& log) {
  return log ? &*log : nullptr;
}

// "0.0312 ± 0.0024"; "± -" where the standard error is not known: of one window, or one item.
std::string with_error(const std::string& figure, double standard_error, int decimals);
// The text of --text; an error that names the flag where there is none.
Result<std::string> evaluation_text(const EvaluateFlags& flags);

}  // namespace octavo
