// octavo evaluate BASE --against CANDIDATE: KL divergence in lock step, and the error budget.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "evaluate/compare_json.h"

namespace octavo {
namespace {

// BASE as the command names it, and the candidate: another folder as its checkpoint says, or the same folder with
// BASE's flags; the --against flags over either.
struct Pair {
  ModelSpec base, candidate;
};

void lay_over(std::string& value, const std::string& asked) {
  if (!asked.empty()) value = asked;
}

Result<Pair> pair_of(const EvaluateFlags& flags) {
  Pair pair;
  OCTAVO_ASSIGN(pair.base, model_spec(flags));
  pair.candidate = pair.base;
  if (!flags.against.empty()) {
    pair.candidate.path = flags.against;
    pair.candidate.options.plan = {};
  }
  PlanRequest& plan = pair.candidate.options.plan;
  const PlanRequest& asked = flags.against_plan;
  lay_over(plan.scheme, asked.scheme);
  lay_over(plan.kv_cache_dtype, asked.kv_cache_dtype);
  lay_over(plan.k_dtype, asked.k_dtype);
  lay_over(plan.v_dtype, asked.v_dtype);
  if (!asked.ignore.empty()) plan.ignore = asked.ignore;
  if (!flags.against_plan_file.empty()) {  // in place of a scheme and its rules
    if (asked.scheme.empty()) plan.scheme.clear();
    if (asked.ignore.empty()) plan.ignore.clear();
    plan.overrides.clear();
    OCTAVO_ASSIGN(plan.file, open_plan(flags.against_plan_file));
  } else if (!asked.scheme.empty()) {
    plan.file = nullptr;
  }
  if (!flags.against_overrides.empty()) {
    OCTAVO_ASSIGN(plan.overrides, parse_overrides(flags.against_overrides));
  }
  if (!flags.against_isa.empty()) {
    OCTAVO_ASSIGN(pair.candidate.options.isa, isa_from_name(flags.against_isa));
  }
  return pair;
}

Json json_of(const CompareResult& r) {
  Json out = compare_json(r);
  out.update({{"nll_difference", r.nll_difference},
              {"nll_difference_standard_error", number_or_null(r.nll_difference_standard_error)},
              {"seconds", r.seconds},
              {"base_seconds", r.base_seconds},
              {"candidate_seconds", r.candidate_seconds}});
  return out;
}

std::string change_text(const CompareResult& r) {
  return with_error(fmt::format("{:+.2f} %", 100 * r.perplexity_change()), 100 * r.perplexity_change_standard_error(),
                    2);
}

void print(const CompareResult& r, int64_t context) {
  fmt::print("perplexity: base {:.4f}, candidate {:.4f} ({})\n", r.base_perplexity, r.candidate_perplexity,
             change_text(r));
  fmt::print("KL(base || candidate), nats: mean {}, median {:.5f}, p99 {:.4f}, p99.9 {:.4f}, max {:.4f}\n",
             with_error(fmt::format("{:.5f}", r.kl_mean), r.kl_standard_error, 5), r.kl_median, r.kl_p99, r.kl_p999,
             r.kl_max);
  fmt::print("same most likely token: {:.2f} %\n", 100 * r.same_top);
  fmt::print("{} tokens in {} windows of {}; {:.1f} s ({:.1f} s base, {:.1f} s candidate), {:.0f} tok/s\n",
             r.tokens_scored, r.windows, context, r.seconds, r.base_seconds, r.candidate_seconds,
             static_cast<double>(r.windows * context) / r.seconds);
}

void print(const std::vector<BudgetRow>& rows) {
  Table table({"lowered alone", "perplexity", "mean KL", "p99 KL", "same top", "formats"});
  table.align_left(5);
  for (const BudgetRow& row : rows) {
    if (!row.result) {
      table.add({row.part, "", "", "", "", "not measured: " + row.why_not});
      continue;
    }
    const CompareResult& r = *row.result;
    table.add({row.part, change_text(r), fmt::format("{:.5f}", r.kl_mean), fmt::format("{:.4f}", r.kl_p99),
               fmt::format("{:.2f} %", 100 * r.same_top), row.formats});
  }
  fmt::print("\nError budget\n{}", table.text());
}

Result<Json> measure(const Pair& pair, const std::string& text, const EvaluateFlags& flags) {
  Progress progress("comparing", flags.output.json);
  OCTAVO_ASSIGN(const std::unique_ptr<Model> base, Model::load(pair.base.path, pair.base.options));
  OCTAVO_ASSIGN(const std::unique_ptr<Model> candidate, Model::load(pair.candidate.path, pair.candidate.options));
  OCTAVO_ASSIGN(const CompareResult result,
                compare(*base, *candidate, text, flags.windows, [&](int64_t done, int64_t total, double kl) {
                  progress.update(static_cast<double>(done), static_cast<double>(total), fmt::format("KL {:.5f}", kl));
                }));
  return whole_json(result);
}

}  // namespace

Result<void> evaluate_against(const EvaluateFlags& flags) {
  if (!flags.compares())
    return fail({.what = "an error budget needs a candidate",
                 .where = "--error-budget",
                 .remedy = "name one with --against or --against-quantization"});
  OCTAVO_ASSIGN(const std::string text, evaluation_text(flags));
  OCTAVO_ASSIGN(const Pair pair, pair_of(flags));
  if (flags.error_budget)  // whether there can be one, before the long comparison
    if (auto parts = lowered_parts(pair.base, pair.candidate); !parts) {
      Error error = std::move(parts).error();
      if (error.remedy.empty()) error.remedy = "leave --error-budget out";
      return fail(std::move(error));
    }
  OCTAVO_ASSIGN(std::optional<SectionLog> log,
                open_sections(flags, "--against", {pair.base, pair.candidate}, text,
                              {{"context", flags.windows.context}, {"windows", flags.windows.windows}}));
  OCTAVO_ASSIGN(const Json measured, section(address(log), "comparison", [&] { return measure(pair, text, flags); }));
  const std::optional<CompareResult> read = read_compare(measured);
  if (!read) return fail(log->refuse("comparison"));
  const CompareResult& result = *read;
  if (!flags.output.json) print(result, flags.windows.context);
  std::vector<BudgetRow> budget;
  if (flags.error_budget) {
    Progress progress("error budget", flags.output.json);
    const auto report = [&](std::string_view part, int64_t done, int64_t total) {
      progress.update(static_cast<double>(done), static_cast<double>(total), part);
    };
    OCTAVO_ASSIGN(budget, error_budget(pair.base, pair.candidate, text, flags.windows, report, address(log)));
  }
  if (flags.output.json) {
    Json out = json_of(result);
    out["context"] = flags.windows.context;
    if (flags.error_budget) out["error_budget"] = budget_json(budget);
    fmt::print("{}\n", out.dump(2));
  } else if (flags.error_budget) {
    print(budget);
  }
  return {};
}

}  // namespace octavo
