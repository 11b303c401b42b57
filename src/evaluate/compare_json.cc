#include "evaluate/compare_json.h"

#include <cmath>

namespace octavo {
namespace {

constexpr std::pair<const char*, double CompareResult::*> kNumbers[] = {
    {"kl_mean", &CompareResult::kl_mean},
    {"kl_standard_error", &CompareResult::kl_standard_error},
    {"kl_median", &CompareResult::kl_median},
    {"kl_p99", &CompareResult::kl_p99},
    {"kl_p999", &CompareResult::kl_p999},
    {"kl_max", &CompareResult::kl_max},
    {"same_top", &CompareResult::same_top},
    {"base_perplexity", &CompareResult::base_perplexity},
    {"candidate_perplexity", &CompareResult::candidate_perplexity},
    {"nll_difference", &CompareResult::nll_difference},
    {"nll_difference_standard_error", &CompareResult::nll_difference_standard_error},
    {"seconds", &CompareResult::seconds},
    {"base_seconds", &CompareResult::base_seconds},
    {"candidate_seconds", &CompareResult::candidate_seconds}};
constexpr std::pair<const char*, int64_t CompareResult::*> kCounts[] = {
    {"windows", &CompareResult::windows},
    {"tokens_scored", &CompareResult::tokens_scored},
    {"kl_max_token", &CompareResult::kl_max_token}};

}  // namespace

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

Json whole_json(const CompareResult& result) {
  Json out = Json::object();
  for (const auto& [key, member] : kNumbers) out[key] = number_or_null(result.*member);
  for (const auto& [key, member] : kCounts) out[key] = result.*member;
  return out;
}

std::optional<CompareResult> read_compare(const Json& json) {
  CompareResult out;
  if (!json.is_object()) return std::nullopt;
  for (const auto& [key, member] : kNumbers) {
    const auto found = json.find(key);
    if (found == json.end() || !(found->is_number() || found->is_null())) return std::nullopt;
    out.*member = found->is_null() ? NAN : found->get<double>();
  }
  for (const auto& [key, member] : kCounts) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return std::nullopt;
    out.*member = found->get<int64_t>();
  }
  return out;
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
