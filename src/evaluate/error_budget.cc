#include "evaluate/error_budget.h"

#include <algorithm>
#include <set>

#include "evaluate/compare_json.h"
#include "evaluate/section_log.h"
#include "kernels/linear.h"
#include "precision/kv_format.h"

namespace octavo {
namespace {

struct Part {
  std::string_view name;
  bool weights, activations, k, v;
};
constexpr Part kParts[] = {{"weights", true, false, false, false},
                           {"activations", false, true, false, false},
                           {"weights and activations", true, true, false, false},
                           {"K", false, false, true, false},
                           {"V", false, false, false, true},
                           {"all", true, true, true, true}};

// The base's plan with the parts of the candidate's.
PrecisionPlan mix(const PrecisionPlan& base, const PrecisionPlan& candidate, const Part& part) {
  PrecisionPlan plan = base;
  plan.scheme = fmt::format("{} + {}", base.scheme, part.name);
  for (auto& [module, linear] : plan.linears) {
    const LinearPlan& lowered = candidate.linear(module);
    if (part.weights) linear.weight = lowered.weight;
    if (part.activations) linear.activation = lowered.activation;
  }
  for (size_t i = 0; i < plan.kv.size(); ++i) {
    KvPlan& kv = plan.kv[i];
    if (part.k) kv.k = candidate.kv[i].k, kv.k_options = candidate.kv[i].k_options;
    if (part.v) kv.v = candidate.kv[i].v, kv.v_options = candidate.kv[i].v_options;
  }
  return plan;
}

bool same_formats(const PrecisionPlan& a, const PrecisionPlan& b) {
  for (const auto& [module, linear] : a.linears) {
    const LinearPlan& other = b.linear(module);
    if (linear.weight != other.weight || linear.activation != other.activation) return false;
  }
  return std::equal(a.kv.begin(), a.kv.end(), b.kv.begin(), b.kv.end(), [](const KvPlan& x, const KvPlan& y) {
    return x.k == y.k && x.v == y.v && x.k_options == y.k_options && x.v_options == y.v_options;
  });
}

// What `plan` changes of `base` in a part: "fp8_e4m3 per row", or several, in order of their names.
std::string describe(const PrecisionPlan& base, const PrecisionPlan& plan, const Part& part) {
  std::set<std::string> weights, activations, kv;
  for (const auto& [module, linear] : plan.linears) {
    const LinearPlan& before = base.linear(module);
    if (part.weights && linear.weight != before.weight) weights.insert(linear.weight.describe());
    if (part.activations && linear.activation != before.activation) activations.insert(linear.activation.describe());
  }
  for (size_t i = 0; i < plan.kv.size(); ++i) {
    const KvPlan &before = base.kv[i], &after = plan.kv[i];
    if (part.k && (after.k != before.k || after.k_options != before.k_options))
      kv.insert("K " + describe_kv(after.k, after.k_options));
    if (part.v && (after.v != before.v || after.v_options != before.v_options))
      kv.insert("V " + describe_kv(after.v, after.v_options));
  }
  std::string text;
  for (const auto* formats : {&weights, &activations, &kv})
    for (const std::string& format : *formats)
      if (text.find(format) == std::string::npos) text += (text.empty() ? "" : ", ") + format;
  return text;
}

// Scales that lie beside the candidate's own weights cannot be laid over those of another folder.
bool needs_candidate_scales(const PrecisionPlan& plan, const Part& part) {
  const auto stored = [](const TensorFormat& format) {
    return format.scaled() && format.scale_time == ScaleTime::kStored;
  };
  for (const auto& [module, linear] : plan.linears)
    if (part.activations && stored(linear.activation)) return true;
  for (const KvPlan& layer : plan.kv)
    if ((part.k && (stored(layer.k) || layer.k_options.temperature)) || (part.v && stored(layer.v))) return true;
  return false;
}

struct Plans {
  PrecisionPlan base, candidate;
  std::vector<LinearModule> modules;
};

Result<Plans> resolve(const ModelSpec& base, const ModelSpec& candidate) {
  OCTAVO_ASSIGN(PlannedCheckpoint of_base, open_planned(base.path, base.options));
  OCTAVO_ASSIGN(PlannedCheckpoint of_candidate, open_planned(candidate.path, candidate.options));
  Plans plans{.base = std::move(of_base.plan),
              .candidate = std::move(of_candidate.plan),
              .modules = of_base.checkpoint.config().linear_modules()};
  const bool same_modules =
      std::equal(plans.base.linears.begin(), plans.base.linears.end(), plans.candidate.linears.begin(),
                 plans.candidate.linears.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (!same_modules || plans.base.kv.size() != plans.candidate.kv.size())
    return fail({.what = "the models have different layers: an error budget mixes the plans of one architecture",
                 .where = candidate.path.string()});
  return plans;
}

using PartProgress = std::function<void(std::string_view, int64_t, int64_t)>;

// Measures rows against one model after the other, each loaded when it is first needed.
class BudgetRun {
 public:
  BudgetRun(std::string_view text, const PerplexityOptions& options, const PartProgress& progress, SectionLog* log)
      : text_(text), options_(options), progress_(progress), log_(log) {}

  // A comparison that fails (logits that are not finite) is the row's: the others are still measured. Error: a model
  // that does not load, the log's.
  Result<void> measure(const ModelSpec& base, const ModelSpec& spec, BudgetRow& row) {
    const std::string name = "budget " + row.part;
    OCTAVO_ASSIGN(const Json measured, section(log_, name, [&] { return compare_specs(base, spec, row.part); }));
    if (measured.contains("why_not") && measured["why_not"].is_string()) {
      row.why_not = measured["why_not"].get<std::string>();
      return {};
    }
    row.result = read_compare(measured);
    if (!row.result) return fail(log_->refuse(name));
    return {};
  }

 private:
  Result<Json> compare_specs(const ModelSpec& base, const ModelSpec& spec, std::string_view part) {
    if (base_ == nullptr || base_spec_ != &base) {
      base_.reset();
      OCTAVO_ASSIGN(base_, Model::load(base.path, base.options));
      base_spec_ = &base;
    }
    OCTAVO_ASSIGN(const std::unique_ptr<Model> candidate, Model::load(spec.path, spec.options));
    const auto result = compare(*base_, *candidate, text_, options_, [&](int64_t done, int64_t total, double) {
      if (progress_) progress_(part, done, total);
    });
    return result ? whole_json(*result) : Json{{"why_not", result.error().line()}};
  }

  std::string_view text_;
  const PerplexityOptions& options_;
  const PartProgress& progress_;
  SectionLog* log_;
  const ModelSpec* base_spec_ = nullptr;
  std::unique_ptr<Model> base_;
};

LoweredPart lower(const ModelSpec& base, const ModelSpec& candidate, const Plans& plans, const Part& part, Isa isa) {
  LoweredPart out{.part = std::string(part.name), .formats = describe(plans.base, plans.candidate, part)};
  // Everything but the weights can be laid over the base's; with them goes the candidate's checkpoint.
  out.spec = {part.weights ? candidate.path : base.path, candidate.options};
  out.spec.options.isa = isa;
  out.spec.options.exact_plan = mix(plans.base, plans.candidate, part);
  if (!part.weights && base.path != candidate.path && needs_candidate_scales(plans.candidate, part))
    out.why_not = "its scales are stored for the candidate's weights";
  else if (const std::string slow = slow_formats(*out.spec.options.exact_plan, plans.modules, isa); !slow.empty())
    out.why_not = fmt::format("no fast kernel for {}", slow);
  return out;
}

}  // namespace

std::string slow_formats(const PrecisionPlan& plan, const std::vector<LinearModule>& modules, Isa isa) {
  if (isa == Isa::kReference) return {};
  for (const LinearModule& module : modules) {
    const LinearPlan& linear = plan.linear(module.name);
    const LinearKey key{linear.weight, linear.activation, module.rows, module.cols};
    if (choose_linear(key, isa).isa == Isa::kReference)
      return fmt::format("{} weights with {} activations", linear.weight.describe(), linear.activation.describe());
  }
  return {};
}

Result<std::vector<LoweredPart>> lowered_parts(const ModelSpec& base, const ModelSpec& candidate) {
  OCTAVO_ASSIGN(const Plans plans, resolve(base, candidate));
  std::vector<LoweredPart> parts;
  for (const Part& part : kParts) {
    const bool other_weights = part.weights && base.path != candidate.path;
    if (!other_weights && same_formats(mix(plans.base, plans.candidate, part), plans.base)) continue;
    parts.push_back(lower(base, candidate, plans, part, base.options.isa.value_or(best_isa())));
  }
  return parts;
}

Result<std::vector<BudgetRow>> error_budget(const ModelSpec& base, const ModelSpec& candidate, std::string_view text,
                                            const PerplexityOptions& options, const PartProgress& progress,
                                            SectionLog* log) {
  OCTAVO_ASSIGN(const std::vector<LoweredPart> parts, lowered_parts(base, candidate));
  BudgetRun run(text, options, progress, log);
  std::vector<BudgetRow> rows;
  for (const LoweredPart& part : parts) {
    BudgetRow row{.part = part.part, .formats = part.formats, .why_not = part.why_not};
    if (part.why_not.empty()) OCTAVO_TRY(run.measure(base, part.spec, row));
    rows.push_back(std::move(row));
  }
  ModelSpec exact = candidate;
  exact.options.isa = Isa::kAvx2;
  const Isa isa = candidate.options.isa.value_or(base.options.isa.value_or(best_isa()));
  BudgetRow kernels{.part = "kernels", .formats = fmt::format("{} against avx2", isa_name(isa))};
  if (isa == Isa::kAvx2)
    kernels.why_not = "runs on avx2, whose bits are the reference's";
  else
    OCTAVO_TRY(run.measure(exact, candidate, kernels));
  rows.insert(rows.end() - (rows.empty() ? 0 : 1), std::move(kernels));
  return rows;
}

}  // namespace octavo
