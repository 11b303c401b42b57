// octavo evaluate: the flags, and which mode they ask for.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/evaluate_modes.h"
#include "cli/version.h"
#include "evaluate/model_facts.h"

namespace octavo {

Result<std::string> evaluation_text(const EvaluateFlags& flags) {
  if (flags.text.empty()) return fail({.what = "no text to evaluate on", .where = "--text", .expected = "a file"});
  return read_flag_file("--text", flags.text);
}

Result<std::optional<SectionLog>> open_sections(const EvaluateFlags& flags, std::string_view mode,
                                                const std::vector<ModelSpec>& models, std::string_view text,
                                                const Json& settings) {
  if (flags.resume.empty()) return std::nullopt;
  Json identity = {{"octavo", fmt::format("finished parts of {}", mode)},
                   {"version", kVersion},
                   {"text", text_hash({std::string(text)})},
                   {"settings", settings}};
  for (const ModelSpec& spec : models) {
    OCTAVO_ASSIGN(const PlannedCheckpoint planned, open_planned(spec.path, spec.options));
    const std::string side = &spec == &models.front() ? "model" : "candidate";
    identity[side] = spec.path.string();
    identity[side + "_files"] = model_fingerprint(spec.path);
    identity[side + "_plan"] = plan_fingerprint(planned.plan, planned.checkpoint);
    identity[side + "_isa"] = isa_name(spec.options.isa.value_or(best_isa()));
  }
  OCTAVO_ASSIGN(SectionLog log, SectionLog::open(flags.resume, identity));
  return std::optional<SectionLog>(std::move(log));
}

std::string with_error(const std::string& figure, double standard_error, int decimals) {
  if (!std::isfinite(standard_error)) return figure + " ± -";
  return fmt::format("{} ± {:.{}f}", figure, standard_error, decimals);
}

Result<ModelSpec> model_spec(const EvaluateFlags& flags) {
  ModelSpec spec{.path = flags.model.model};
  OCTAVO_TRY(flags.model.machine.apply(spec.options));
  OCTAVO_ASSIGN(spec.options.plan, flags.model.request());
  return spec;
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Result<std::vector<int64_t>> parse_numbers(const std::string& text, const std::string& flag) {
  std::vector<int64_t> numbers;
  for (const std::string& part : split_list(text)) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || end != part.data() + part.size())
      return fail({.what = "not a list of numbers", .where = flag, .found = text, .expected = "for example 1024,4096"});
    numbers.push_back(number);
  }
  if (numbers.empty()) return fail({.what = "the list is empty", .where = flag, .expected = "for example 1024,4096"});
  return numbers;
}

Result<void> write_json_lines(const std::string& path, const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return write_text_file(path, text);
}

namespace {

// What can be asked for: bits of a set.
constexpr unsigned kPerplexity = 1, kAgainst = 2, kTask = 4, kNeedle = 8, kKvTable = 16, kAnswers = 32, kAll = 63;

struct Mode {
  unsigned bit;
  std::string_view flag;
  bool asked;
  Result<void> (*run)(const EvaluateFlags&);
};

// The modes in which a flag does something.
struct FlagUse {
  std::string_view flag;
  unsigned modes;
};

std::vector<FlagUse> flag_uses(const EvaluateFlags& f) {
  const unsigned own_cache = kAll & ~(kKvTable | (f.kv_dtypes.empty() ? 0 : kNeedle));
  return {{"text", kPerplexity | kAgainst | kNeedle | kKvTable},
          {"context", kPerplexity | kAgainst},
          {"windows", kPerplexity | kAgainst | kKvTable},
          {"error-budget", kAgainst},
          {"data", kTask},
          {"limit", kTask},
          {"seed", kTask | kNeedle},
          {"shots", kTask},
          {"shots-from", kTask},
          {"max-tokens", kTask | kAnswers},
          {"raw", kTask},
          {"add-special", kTask},
          {"items-out", kTask},
          {"out", kTask | kAnswers},
          {"lengths", kNeedle},
          {"depths", kNeedle},
          {"tries", kNeedle},
          {"contexts", kKvTable},
          {"kv-dtypes", kNeedle | kKvTable},
          {"diff", kAnswers},
          {"kv-cache-dtype", own_cache},
          {"k-dtype", own_cache},
          {"v-dtype", own_cache}};
}

class EvaluateCommand final : public Command {
 public:
  std::string_view name() const override { return "evaluate"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override { return "Quality: perplexity, KL divergence against another plan, tasks"; }
  bool wants_json() const override { return flags_.output.json; }

  void declare(Flags& flags) override {
    EvaluateFlags& f = flags_;
    f.given = flags.given();
    f.model.declare(flags);
    flags.option("text", f.text, "The text file (UTF-8) for perplexity and KL");
    flags.option("context", f.windows.context, "Tokens of a window");
    flags.option("windows", f.windows.windows, "Number of windows (0: all of the text)");
    flags.group("Lock step against a candidate");
    flags.option("against", f.against, "The candidate: another model (default: MODEL with the flags below)");
    flags.option("against-quantization", f.against_plan.scheme, "Its scheme");
    flags.option("against-plan", f.against_plan_file, "Its plan file");
    flags.option("against-kv-cache-dtype", f.against_plan.kv_cache_dtype, "Its KV cache");
    flags.option("against-k-dtype", f.against_plan.k_dtype, "Its keys alone");
    flags.option("against-v-dtype", f.against_plan.v_dtype, "Its values alone");
    flags.option("against-ignore", f.against_plan.ignore, "Modules it keeps wide; may be repeated");
    flags.option("against-override", f.against_overrides, "RULE=SCHEME for the candidate; may be repeated");
    flags.option("against-isa", f.against_isa, "Its instruction set");
    flags.flag("error-budget", f.error_budget,
               "Also lower weights, activations, K and V each alone, and compare the kernels");
    declare_task(flags);
    declare_context(flags);
    flags.group("Options");
    flags.option("resume", f.resume,
                 "A file of finished windows, items, rows, cells or answers: written while running, and gone on with");
    f.output.declare(flags);
  }

  void declare_task(Flags& flags) {
    EvaluateFlags& f = flags_;
    std::string names;
    for (const BuiltInTask& row : built_in_tasks()) names += std::string(row.name) + ", ";
    flags.group("Tasks");
    flags.option("task", f.task, names + "or the .json file of a set of your own");
    flags.option("data", f.data, "The task's items (JSONL)");
    flags.option("limit", f.selection.limit, "Items (0: all)");
    flags.option("seed", f.selection.seed, "0: the first items; else a sample of --limit items");
    flags.option("shots", f.shots, "Solved examples before each item (0: none)");
    flags.option("shots-from", f.shots_from, "Their data (JSONL); the first ones are taken");
    flags.option("max-tokens", f.max_tokens, "Of a generated answer (0: the task's own; 64 with --answers)");
    flags.flag("raw", f.raw, "Generation without the chat template");
    flags.flag("add-special", f.add_special, "With the special tokens that the tokenizer adds (BOS)");
    flags.option("items-out", f.items_out, "Write what was measured of each item (JSONL)");
    flags.option("out", f.out, "Write the generated answers (JSONL; HumanEval's {task_id, completion})");
  }

  void declare_context(Flags& flags) {
    EvaluateFlags& f = flags_;
    flags.group("Long context and the KV cache");
    flags.flag("needle", f.needle, "Find a fact again, over depths and lengths of --text");
    flags.option("lengths", f.lengths, "Tokens, comma-separated");
    flags.option("depths", f.depths, "Per cent, comma-separated");
    flags.option("tries", f.tries, "Facts per cell");
    flags.flag("kv-table", f.kv_table, "Perplexity, KL and bytes per token of every KV format");
    flags.option("contexts", f.contexts, "Windows of the table (default: 1024, 4096 and the model's context)");
    flags.option("kv-dtypes", f.kv_dtypes, "KV formats for both, comma-separated; K/V apart as fp8_e4m3/bf16");
    flags.group("Answers");
    flags.option("answers", f.answers, "Prompts (JSONL: prompt, messages or tokens) to answer greedily; see --out");
    flags.flag("boundary", f.boundary, "The prompts are inputs at the borders of what a model takes");
    flags.option("diff", f.diff, "Answers written before, to compare with");
  }

  Result<void> run() override {
    const EvaluateFlags& f = flags_;
    const Mode modes[] = {{kAgainst, "--against", f.compares() || f.error_budget, evaluate_against},
                          {kTask, "--task", !f.task.empty(), evaluate_task},
                          {kNeedle, "--needle", f.needle, evaluate_needle},
                          {kKvTable, "--kv-table", f.kv_table, evaluate_kv_table},
                          {kAnswers, "--answers", !f.answers.empty() || f.boundary, evaluate_answers}};
    const Mode* chosen = nullptr;
    for (const Mode& mode : modes) {
      if (!mode.asked) continue;
      if (chosen != nullptr)
        return fail({.what = "one evaluation at a time",
                     .where = fmt::format("{}, {}", chosen->flag, mode.flag),
                     .remedy = "leave one of them out"});
      chosen = &mode;
    }
    OCTAVO_TRY(check_flags(modes, chosen));
    return chosen == nullptr ? evaluate_perplexity(f) : chosen->run(f);
  }

 private:
  // Flags of other modes than the chosen one (none: perplexity), and numbers that nothing can mean.
  Result<void> check_flags(std::span<const Mode> modes, const Mode* chosen) const {
    for (const FlagUse& use : flag_uses(flags_)) {
      if (!flags_.given(use.flag) || (use.modes & (chosen == nullptr ? kPerplexity : chosen->bit)) != 0) continue;
      std::string names = (use.modes & kPerplexity) != 0 ? "perplexity" : "";
      for (const Mode& mode : modes)
        if ((use.modes & mode.bit) != 0) names += (names.empty() ? "" : ", ") + std::string(mode.flag);
      return fail({.what = chosen == nullptr ? "the flag does nothing without its mode"
                                             : fmt::format("the flag does nothing with {}", chosen->flag),
                   .where = fmt::format("--{}", use.flag),
                   .expected = "with " + names,
                   .remedy = "leave it out"});
    }
    const std::pair<const char*, int64_t> counts[] = {{"--windows", flags_.windows.windows},
                                                      {"--limit", flags_.selection.limit},
                                                      {"--shots", flags_.shots},
                                                      {"--max-tokens", flags_.max_tokens}};
    for (const auto& [flag, count] : counts)
      if (count < 0)
        return fail({.what = "a number is negative",
                     .where = flag,
                     .found = fmt::format("{}", count),
                     .expected = "0 or more"});
    return {};
  }

  EvaluateFlags flags_;
};

}  // namespace

std::unique_ptr<Command> make_evaluate_command() {
  return std::make_unique<EvaluateCommand>();
}

}  // namespace octavo
