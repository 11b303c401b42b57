// octavo evaluate MODEL --kv-table: what each KV format costs and takes.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "evaluate/kv_table.h"

namespace octavo {
namespace {

Result<KvTableOptions> options_of(const EvaluateFlags& flags, const ModelSpec& spec) {
  KvTableOptions options{.windows = flags.windows.windows};
  OCTAVO_ASSIGN(Checkpoint checkpoint, Checkpoint::open(spec.path));
  const std::string& calibration = spec.options.plan.kv_calibration;
  if (!calibration.empty()) OCTAVO_TRY(checkpoint.use_kv_calibration(calibration));
  if (flags.kv_dtypes.empty()) options.choices = kv_choices(checkpoint);
  for (const std::string& name : split_list(flags.kv_dtypes)) {
    OCTAVO_ASSIGN(KvChoice choice, parse_kv_choice(name));
    options.choices.push_back(std::move(choice));
  }
  if (!flags.contexts.empty()) {
    OCTAVO_ASSIGN(options.contexts, parse_numbers(flags.contexts, "--contexts"));
    return options;
  }
  const int64_t full = checkpoint.config().context_length();
  for (const int64_t context : {int64_t{1024}, int64_t{4096}, full})
    if (context <= full && (options.contexts.empty() || context > options.contexts.back()))
      options.contexts.push_back(context);
  return options;
}

void print(const std::vector<KvTableRow>& rows, double wide_bytes) {
  Table table({"context, K/V", "bytes per token", "perplexity", "", "mean KL", "p99.9 KL", "same top"});
  int64_t context = 0;
  for (const KvTableRow& row : rows) {
    if (row.context != context) {
      context = row.context;
      table.add({fmt::format("{} bf16", context), fmt::format("{:.0f}", wide_bytes),
                 fmt::format("{:.4f}", row.result.base_perplexity), "", "", "", ""});
    }
    const CompareResult& r = row.result;
    table.add(
        {fmt::format("{} {}", context, row.choice.name()), fmt::format("{:.0f}", row.bytes_per_token),
         fmt::format("{:.4f}", r.candidate_perplexity),
         fmt::format("{:+.3f} % ± {:.3f}", 100 * r.perplexity_change(), 100 * r.perplexity_change_standard_error()),
         fmt::format("{:.6f}", r.kl_mean), fmt::format("{:.4f}", r.kl_p999),
         fmt::format("{:.2f} %", 100 * r.same_top)});
  }
  fmt::print("{}", table.text());
}

Json json_of(const std::vector<KvTableRow>& rows, double wide_bytes) {
  Json list = Json::array();
  for (const KvTableRow& row : rows)
    list.push_back({{"kv", row.choice.name()},
                    {"context", row.context},
                    {"bytes_per_token", row.bytes_per_token},
                    {"perplexity", row.result.candidate_perplexity},
                    {"bf16_perplexity", row.result.base_perplexity},
                    {"perplexity_change", row.result.perplexity_change()},
                    {"perplexity_change_standard_error", row.result.perplexity_change_standard_error()},
                    {"kl_mean", row.result.kl_mean},
                    {"kl_p99.9", row.result.kl_p999},
                    {"kl_max", row.result.kl_max},
                    {"same_top", row.result.same_top},
                    {"tokens_scored", row.result.tokens_scored}});
  return {{"bf16_bytes_per_token", wide_bytes}, {"rows", std::move(list)}};
}

}  // namespace

Result<void> evaluate_kv_table(const EvaluateFlags& flags) {
  OCTAVO_ASSIGN(const std::string text, evaluation_text(flags));
  OCTAVO_ASSIGN(const ModelSpec spec, model_spec(flags));
  OCTAVO_ASSIGN(const KvTableOptions options, options_of(flags, spec));
  OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(spec.path));
  const ModelConfig& c = checkpoint.config();
  const auto wide_bytes = static_cast<double>(c.num_layers * c.num_kv_heads * c.head_dim * 4);  // K and V, two bytes
  std::vector<KvTableRow> rows;
  {
    Progress progress("KV table", flags.output.json);
    OCTAVO_ASSIGN(rows, kv_table(spec, text, options, [&](std::string_view row, int64_t done, int64_t total) {
                    progress.update(static_cast<double>(done), static_cast<double>(total), row);
                  }));
  }
  if (flags.output.json) {
    fmt::print("{}\n", json_of(rows, wide_bytes).dump(2));
  } else {
    print(rows, wide_bytes);
  }
  return {};
}

}  // namespace octavo
