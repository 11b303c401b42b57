// octavo sensitivity: what lowering each tensor alone costs, and the best plan for a budget.
#include "evaluate/sensitivity.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/evaluate_modes.h"
#include "cli/options.h"
#include "cli/sensitivity_tables.h"
#include "cli/terminal.h"
#include "evaluate/plan_search.h"
#include "evaluate/sensitivity_json.h"
#include "kernels/roofline.h"

namespace octavo {
namespace {

constexpr int kParetoPoints = 12;

class SensitivityCommand final : public Command {
 public:
  std::string_view name() const override { return "sensitivity"; }
  std::string_view group() const override { return "Prove"; }
  std::string_view summary() const override {
    return "What lowering each tensor alone costs, and the best plan for a budget";
  }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    flags.argument("MODEL", model_, "A model folder (config.json, *.safetensors) or a .gguf file");
    flags.group("Measurement");
    flags.option("text", text_, "The text file (UTF-8) to measure on");
    flags.option("tokens", tokens_, "Tokens of it");
    flags.option("context", options_.windows.context, "Tokens of a window");
    flags.option("scheme", schemes_,
                 "Candidates for the linear layers, comma-separated (default: fp8; with --from: all)");
    flags.option("kv", kv_, "Candidates for K and for V, each alone; none: leave them out");
    flags.option("base", options_.base, "Scheme of everything that is not lowered");
    flags.option("out", out_, "Write the result (JSON)");
    flags.flag("resume", resume_, "Go on with a run into --out that was ended");
    flags.option("memory-limit", memory_limit_, "MB of hidden states held in memory; more is spilled beside --out");
    flags.group("Plan");
    flags.option("from", from_, "Search in a result that was written before, instead of measuring");
    flags.option("budget", budget_, "Bits per weight, bytes of all weights or time per token: 5.5bpw, 90MB, 4.5ms");
    flags.option("plan-out", plan_out_, "Write the best plan for the budget (for --plan)");
    flags.flag("split-fused", search_.split_fused,
               "q, k, v (and gate, up) of a layer may differ; vLLM and SGLang refuse that");
    flags.flag("lower-head", search_.lower_head, "The head too may be lowered");
    flags.option("depth", search_.depth,
                 "Tokens of context whose KV cache counts with the bytes (0: it stays as it is)");
    flags.option("read-gb-s", read_gb_s_, "GB/s that the memory reads (0: measured when the budget is a time)");
    machine_.declare(flags);
    output_.declare(flags);
    given_ = flags.given();
  }

  Result<void> run() override {
    OCTAVO_TRY(check_flags());
    if (!budget_.empty()) {
      OCTAVO_ASSIGN(wanted_, parse_budget(budget_));
      OCTAVO_TRY(check_budget(*wanted_, search_.depth));
    }
    Result<Sensitivity> result = from_.empty() ? measure() : read_sensitivity(from_);
    OCTAVO_ASSIGN(const Sensitivity sensitivity, std::move(result));
    Json out = json_of(sensitivity);
    if (!output_.json && from_.empty()) {
      const bool colour = is_terminal(STDOUT_FILENO) && getenv("NO_COLOR") == nullptr;
      fmt::print("{}\n{}\n", sensitivity_table(sensitivity, colour), sensitivity_summary(sensitivity));
      fmt::print("base {}: perplexity {:.4f} over {} tokens, {} of linear weights\n", sensitivity.base,
                 sensitivity.base_perplexity, sensitivity.tokens,
                 human_bytes(static_cast<double>(sensitivity.base_bytes)));
    }
    if (!from_.empty() || wanted_) {
      OCTAVO_ASSIGN(Json found, search(sensitivity));
      if (from_.empty())
        out["search"] = std::move(found);
      else
        out = std::move(found);
    }
    if (output_.json) fmt::print("{}\n", out.dump(2));
    return {};
  }

 private:
  Result<void> check_flags() {
    if (text_.empty() == from_.empty())
      return fail({.what = text_.empty() ? "nothing to measure on" : "a text and a result at once",
                   .where = "--text, --from",
                   .expected = "--text FILE to measure, or --from FILE to search in what was measured"});
    if (resume_ && (out_.empty() || !from_.empty()))
      return fail({.what = "nothing to resume", .where = "--resume", .remedy = "name the run's --out FILE"});
    if (!plan_out_.empty() && budget_.empty())
      return fail({.what = "a plan needs a budget", .where = "--plan-out", .remedy = "give one with --budget 5.5bpw"});
    const auto positive = [](std::string_view flag, int64_t value, int64_t least) -> Result<void> {
      if (value >= least && value <= 1'000'000'000) return {};
      return fail({.what = "number is out of range",
                   .where = std::string(flag),
                   .found = fmt::format("{}", value),
                   .expected = fmt::format("{} to 1000000000", least)});
    };
    OCTAVO_TRY(check_uses());
    OCTAVO_TRY(positive("--tokens", tokens_, 2));
    OCTAVO_TRY(positive("--context", options_.windows.context, 2));
    OCTAVO_TRY(positive("--memory-limit", memory_limit_, 0));
    OCTAVO_TRY(positive("--depth", search_.depth, 0));
    if (!(read_gb_s_ >= 0))
      return fail({.what = "not a bandwidth", .where = "--read-gb-s", .expected = "GB/s, or 0 to measure it"});
    if (from_.empty() && tokens_ < 2 * options_.windows.context)
      return fail({.what = "fewer tokens than two windows have",
                   .where = "--tokens",
                   .found = fmt::format("{}", tokens_),
                   .expected = fmt::format("at least twice --context {}", options_.windows.context)});
    return {};
  }

  // Flags of the part that does not run.
  Result<void> check_uses() const {
    if (!from_.empty())
      return given_.refuse({"out", "tokens", "context", "kv", "base", "memory-limit", "isa"},
                           "--from searches in what was measured before");
    if (!budget_.empty()) return {};
    return given_.refuse({"split-fused", "lower-head", "depth", "read-gb-s"},
                         "plans are searched with --budget, or --from FILE");
  }

  Result<Sensitivity> measure() {
    OCTAVO_ASSIGN(const std::string text, read_flag_file("--text", text_));
    ModelOptions machine;
    OCTAVO_TRY(machine_.apply(machine));
    options_.threads = machine.threads;
    options_.isa = machine.isa;
    options_.schemes = split_list(schemes_.empty() ? "fp8" : schemes_);
    options_.kv = kv_ == "none" ? std::vector<std::string>{} : split_list(kv_);
    options_.windows.windows = tokens_ / options_.windows.context;
    options_.memory_limit = memory_limit_ * 1'000'000;
    const std::filesystem::path folder = std::filesystem::path(out_).parent_path();
    options_.spill_folder = folder.empty() ? "." : folder;
    if (!out_.empty()) {
      options_.log = out_ + ".log";
      if (!resume_ && std::filesystem::exists(options_.log))
        return fail({.what = "a run into this file was ended before it was done",
                     .where = options_.log.string(),
                     .remedy = "go on with --resume, or delete it"});
    }
    Result<Sensitivity> measured = fail({});
    {
      Progress progress("sensitivity", output_.json);
      measured = measure_sensitivity(model_, text, options_, [&](double done, double total, std::string_view what) {
        progress.update(done, total, what);
      });
    }
    if (!measured || out_.empty()) return measured;
    OCTAVO_TRY(write_text_file(out_, sensitivity_text(*measured)));
    std::error_code ignored;
    std::filesystem::remove(options_.log, ignored);
    return measured;
  }

  Result<Json> search(const Sensitivity& sensitivity) {
    OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model_));
    if (!from_.empty()) search_.schemes = split_list(schemes_);
    OCTAVO_ASSIGN(const PlanSearch search, PlanSearch::create(sensitivity, checkpoint.config(), search_,
                                                              from_.empty() ? "this measurement" : from_));
    const bool timed = wanted_ && wanted_->kind == PlanBudget::Kind::kMilliseconds;
    if (timed && read_gb_s_ == 0) {
      ModelOptions machine;
      OCTAVO_TRY(machine_.apply(machine));
      ThreadPool pool(machine.threads > 0 ? machine.threads : available_cores());
      read_gb_s_ = static_cast<float>(measure_roofline(pool).read_gb_s);
    }
    std::vector<PlanRow> rows;
    for (PlanPoint& point : search.pareto(kParetoPoints)) rows.push_back({"", std::move(point)});
    for (auto& [scheme, point] : search.uniform()) rows.push_back({"all " + scheme, std::move(point)});
    std::optional<PlanPoint> chosen;
    if (wanted_) {
      OCTAVO_ASSIGN(const int64_t bytes, search.bytes_of(*wanted_, read_gb_s_));
      OCTAVO_ASSIGN(chosen, search.best(bytes));
      rows.push_back({"> " + budget_, *chosen});
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const PlanRow& a, const PlanRow& b) { return a.point.bytes < b.point.bytes; });
    if (!output_.json) {
      fmt::print("\nPlans, as the sum of what their tensors cost alone; loss: of perplexity, by KL\n{}",
                 plan_table(rows, read_gb_s_));
      if (read_gb_s_ > 0) fmt::print("TPOT: the bytes at {:.1f} GB/s\n", read_gb_s_);
    }
    if (!plan_out_.empty()) {
      OCTAVO_TRY(write_text_file(plan_out_, plan_file_text(search.plan(*chosen))));
      if (!output_.json) fmt::print("plan for {} written to {}\n", budget_, plan_out_);
    }
    return json_of_rows(rows, chosen);
  }

  Json json_of_rows(const std::vector<PlanRow>& rows, const std::optional<PlanPoint>& chosen) const {
    const auto json_of_point = [&](const PlanPoint& p) {
      Json shares = Json::object();
      for (const auto& [scheme, share] : p.shares) shares[scheme] = share;
      Json out = {
          {"bits_per_weight", p.bits_per_weight},     {"bytes", p.bytes},           {"kl", p.kl}, {"loss", p.loss()},
          {"perplexity_change", p.perplexity_change}, {"shares", std::move(shares)}};
      if (read_gb_s_ > 0) out["tpot_seconds"] = static_cast<double>(p.bytes) / (read_gb_s_ * 1e9);
      return out;
    };
    Json pareto = Json::array(), uniform = Json::object();
    for (const PlanRow& row : rows) {
      if (row.label.empty()) pareto.push_back(json_of_point(row.point));
      if (row.label.starts_with("all ")) uniform[row.label.substr(4)] = json_of_point(row.point);
    }
    Json out = {{"pareto", std::move(pareto)}, {"uniform", std::move(uniform)}};
    if (chosen) {
      out["budget"] = budget_;
      out["best"] = json_of_point(*chosen);
    }
    return out;
  }

  std::string model_, text_, schemes_, kv_ = "fp8_e4m3", out_, from_, budget_, plan_out_;
  int64_t tokens_ = 8192, memory_limit_ = 1000;
  float read_gb_s_ = 0;
  bool resume_ = false;
  SensitivityOptions options_;
  PlanSearchOptions search_;
  std::optional<PlanBudget> wanted_;
  MachineOptions machine_;
  OutputOptions output_;
  GivenFlags given_;
};

}  // namespace

std::unique_ptr<Command> make_sensitivity_command() {
  return std::make_unique<SensitivityCommand>();
}

}  // namespace octavo
