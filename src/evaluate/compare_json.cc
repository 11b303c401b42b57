#include "evaluate/compare_json.h"

#include <cmath>

namespace octavo {

Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json compare_json(const CompareResult& r) {
  return {{"perplexity", r.candidate_perplexity},
          {"perplexity_change", r.perplexity_change()},
          {"perplexity_change_standard_error", number_or_null(r.perplexity_change_standard_error())},
          {"kl_mean", r.kl_mean},
          {"kl_standard_error", number_or_null(r.kl_standard_error)},
          {"kl_median", r.kl_median},
          {"kl_p99", r.kl_p99},
          {"kl_p999", r.kl_p999},
          {"kl_max", r.kl_max},
          {"kl_max_token", r.kl_max_token},
          {"same_top", r.same_top},
          {"base_perplexity", r.base_perplexity},
          {"windows", r.windows},
          {"tokens_scored", r.tokens_scored}};
}

Json budget_json(const std::vector<BudgetRow>& rows) {
  Json out = Json::array();
  for (const BudgetRow& row : rows) {
    Json entry = {{"part", row.part}, {"formats", row.formats}};
    if (row.result) entry.update(compare_json(*row.result));
    if (!row.result) entry["why_not"] = row.why_not;
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace octavo
