// What each format of the KV cache costs in quality and takes in memory, at several context lengths.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate/error_budget.h"

namespace octavo {

// "fp8_e4m3:static": keys and values, as precision/kv_format.h spells them; "fp8_e4m3/bf16": keys, values.
struct KvChoice {
  std::string both, k, v;  // both, or k and v
  std::string name() const { return both.empty() ? k + "/" + v : both; }
};
Result<KvChoice> parse_kv_choice(std::string_view text);
// `request` with this KV cache.
PlanRequest with_kv(PlanRequest request, const KvChoice& choice);

// Every format and option that this checkpoint has the values for.
std::vector<KvChoice> kv_choices(const Checkpoint& checkpoint);

struct KvTableOptions {
  std::vector<KvChoice> choices;
  std::vector<int64_t> contexts;
  int64_t windows = 0;  // 0: as many as hold 8192 tokens, at least one
};

struct KvTableRow {
  KvChoice choice;
  int64_t context = 0;
  double bytes_per_token = 0, bf16_bytes_per_token = 0;  // of a text of this length
  std::optional<CompareResult> result;                   // against the same weights and activations with a BF16 cache
  std::string why_not;                                   // where there is none: logits that are not finite
};

// Error: a context that the model does not have, a text shorter than the longest one (both before a model is loaded); a
// model that does not load so; a table without one result. Rows that `log` has are not measured again.
Result<std::vector<KvTableRow>> kv_table(
    const ModelSpec& spec, std::string_view text, const KvTableOptions& options,
    const std::function<void(std::string_view row, int64_t done, int64_t total)>& progress = {},
    SectionLog* log = nullptr);

}  // namespace octavo
