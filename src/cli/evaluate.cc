// octavo evaluate: the flags, and which mode they ask for.
#include <fmt/format.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/evaluate_modes.h"

namespace octavo {

Result<std::string> evaluation_text(const EvaluateFlags& flags) {
  if (flags.text.empty()) return fail({.what = "no text to evaluate on", .where = "--text", .expected = "a file"});
  return read_text_file(flags.text);
}

namespace {

class EvaluateCommand final : public Command {
 public:
  std::string_view name() const override { return "evaluate"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override {
    return "Quality: perplexity, KL divergence against another plan, tasks";
  }
  bool wants_json() const override { return flags_.output.json; }

  void declare(Flags& flags) override {
    EvaluateFlags& f = flags_;
    f.model.declare(flags);
    flags.option("text", f.text, "The text file (UTF-8) for perplexity and KL");
    flags.option("context", f.windows.context, "Tokens of a window");
    flags.option("windows", f.windows.windows, "Number of windows (0: all of the text)");
    flags.group("Lock step against a candidate");
    flags.option("against", f.against, "The candidate: another model (default: MODEL with the flags below)");
    flags.option("against-quantization", f.against_plan.scheme, "Its scheme");
    flags.option("against-kv-cache-dtype", f.against_plan.kv_cache_dtype, "Its KV cache");
    flags.option("against-k-dtype", f.against_plan.k_dtype, "Its keys alone");
    flags.option("against-v-dtype", f.against_plan.v_dtype, "Its values alone");
    flags.option("against-ignore", f.against_plan.ignore, "Modules it keeps wide; may be repeated");
    flags.option("against-override", f.against_overrides, "RULE=SCHEME for the candidate; may be repeated");
    flags.option("against-isa", f.against_isa, "Its instruction set");
    flags.flag("error-budget", f.error_budget,
               "Also lower weights, activations, K and V each alone, and compare the kernels");
    declare_task(flags);
    flags.group("Options");
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
    flags.option("max-tokens", f.max_tokens, "Of a generated answer (0: the task's own)");
    flags.flag("raw", f.raw, "Generation without the chat template");
    flags.flag("add-special", f.add_special, "With the special tokens that the tokenizer adds (BOS)");
    flags.option("resume", f.resume, "A file of finished items: written while running, and gone on with");
    flags.option("items-out", f.items_out, "Write what was measured of each item (JSONL)");
    flags.option("out", f.out, "Write the generated answers (JSONL; HumanEval's {task_id, completion})");
  }

  Result<void> run() override {
    if (!flags_.task.empty() && flags_.compares())
      return fail({.what = "--task evaluates one model", .where = "--task", .remedy = "run it for each model"});
    if (!flags_.task.empty()) return evaluate_task(flags_);
    if (flags_.compares()) return evaluate_against(flags_);
    if (flags_.error_budget)
      return fail({.what = "an error budget needs a candidate",
                   .where = "--error-budget",
                   .remedy = "name one with --against or --against-quantization"});
    return evaluate_perplexity(flags_);
  }

 private:
  EvaluateFlags flags_;
};

}  // namespace

std::unique_ptr<Command> make_evaluate_command() {
  return std::make_unique<EvaluateCommand>();
}

}  // namespace octavo
