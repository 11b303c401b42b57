// What was measured, in JSON: one spelling for every command and the report (docs/accept.md). Include only in .cc
// files: it brings the JSON library.
#pragma once

#include "base/json.h"
#include "evaluate/error_budget.h"

namespace octavo {

// null where a figure is not finite: JSON has no such number.
Json number_or_null(double value);

// "perplexity", "base_perplexity", "perplexity_change", "kl_mean", ..., "same_top", "tokens_scored". No seconds: these
// differ from run to run.
Json compare_json(const CompareResult& result);

// Of each row "part", "formats", and the figures or "why_not".
Json budget_json(const std::vector<BudgetRow>& rows);

}  // namespace octavo
