// Error budget: what each part of a plan costs when it alone is lowered.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/compare.h"

namespace octavo {

// A model as a command names it.
struct ModelSpec {
  std::filesystem::path path;
  ModelOptions options;
};

class SectionLog;  // evaluate/section_log.h

struct BudgetRow {
  std::string part;     // "weights", "activations", "weights and activations", "K", "V", "kernels", "all"
  std::string formats;  // what was lowered, e.g. "fp8_e4m3 per row"
  std::optional<CompareResult> result;
  std::string why_not;  // where there is no result: it has no fast kernel, logits that are not finite, ...
};

// The base's plan with one part of the candidate's in it: a rung of the way from one to the other.
struct LoweredPart {
  std::string part;     // of BudgetRow, without "kernels"
  std::string formats;  // what is lowered
  ModelSpec spec;       // what to load
  std::string why_not;  // where it cannot be measured
};
// In the order of the rows, "all" last; both plans run on the base's instruction set. A part that the candidate does
// not change is left out. Error: the models have different layers.
Result<std::vector<LoweredPart>> lowered_parts(const ModelSpec& base, const ModelSpec& candidate);

// The base's plan with one part of the candidate's in it, each against the base: weights (the candidate's, under the
// base's activations and KV cache), activations, both, K, V, and all. "kernels" is the candidate's plan on its
// instruction set against the same plan on avx2, which has the bits of the reference. One pair of models is loaded at a
// time. A part that the candidate does not change has no row. Rows that `log` has are not measured again.
Result<std::vector<BudgetRow>> error_budget(
    const ModelSpec& base, const ModelSpec& candidate, std::string_view text, const PerplexityOptions& options,
    const std::function<void(std::string_view part, int64_t done, int64_t total)>& progress = {},
    SectionLog* log = nullptr);

// Where a plan's linear layers would run on the reference rows of `isa`: which formats; empty when nowhere.
std::string slow_formats(const PrecisionPlan& plan, const std::vector<LinearModule>& modules, Isa isa);

}  // namespace octavo
