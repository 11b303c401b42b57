// What was measured, in JSON: one spelling for every command and the report (docs/accept.md). Include only in .cc
// files: it brings the JSON library.
#pragma once

#include <optional>

#include "base/json.h"
#include "evaluate/error_budget.h"

namespace octavo {

// null where a figure is not finite: JSON has no such number.
Json number_or_null(double value);

// "perplexity", "base_perplexity", "perplexity_change", "kl_mean", ..., "same_top", "tokens_scored". No seconds: these
// differ from run to run.
Json compare_json(const CompareResult& result);

// All of a result, for a log; what read_compare() reads again, bit for bit. Nothing: it is not such a result.
Json whole_json(const CompareResult& result);
std::optional<CompareResult> read_compare(const Json& json);

// Of each row "part", "formats", and the figures or "why_not".
Json budget_json(const std::vector<BudgetRow>& rows);

}  // namespace octavo
