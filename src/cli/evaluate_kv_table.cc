// octavo evaluate MODEL --kv-table: what each KV format costs and takes.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "evaluate/compare_json.h"
#include "evaluate/kv_table.h"

namespace octavo {
namespace {

Result<KvTableOptions> kv_table_options(const EvaluateFlags& flags, const ModelSpec& spec) {
  KvTableOptions options{.windows = flags.windows.windows};
  OCTAVO_ASSIGN(const PlannedCheckpoint planned, open_planned(spec.path, spec.options));
  const Checkpoint& checkpoint = planned.checkpoint;
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

void print(const std::vector<KvTableRow>& rows) {
  Table table({"context, K/V", "bytes per token", "perplexity", "", "mean KL", "p99.9 KL", "same top"});
  int64_t context = 0;
  for (const KvTableRow& row : rows) {
    const std::string name = fmt::format("{} {}", row.context, row.choice.name()),
                      bytes = fmt::format("{:.0f}", row.bytes_per_token);
    if (!row.result) {
      table.add({name, bytes, "", "", "", "", "not measured: " + row.why_not});
      continue;
    }
    const CompareResult& r = *row.result;
    if (row.context != context) {
      context = row.context;
      table.add({fmt::format("{} bf16", context), fmt::format("{:.0f}", row.bf16_bytes_per_token),
                 fmt::format("{:.4f}", r.base_perplexity), "", "", "", ""});
    }
    table.add({name, bytes, fmt::format("{:.4f}", r.candidate_perplexity),
               with_error(fmt::format("{:+.3f} %", 100 * r.perplexity_change()),
                          100 * r.perplexity_change_standard_error(), 3),
               fmt::format("{:.6f}", r.kl_mean), fmt::format("{:.4f}", r.kl_p999),
               fmt::format("{:.2f} %", 100 * r.same_top)});
  }
  fmt::print("{}", table.text());
}

Json json_of(const std::vector<KvTableRow>& rows) {
  Json list = Json::array();
  for (const KvTableRow& row : rows) {
    Json entry = {{"kv", row.choice.name()}, {"context", row.context}, {"bytes_per_token", row.bytes_per_token}};
    if (row.result) entry.update(compare_json(*row.result));
    if (!row.result) entry["why_not"] = row.why_not;
    list.push_back(std::move(entry));
  }
  return {{"bf16_bytes_per_token", rows.empty() ? 0 : rows[0].bf16_bytes_per_token}, {"rows", std::move(list)}};
}

}  // namespace

Result<void> evaluate_kv_table(const EvaluateFlags& flags) {
  OCTAVO_ASSIGN(const std::string text, evaluation_text(flags));
  OCTAVO_ASSIGN(const ModelSpec spec, model_spec(flags));
  OCTAVO_ASSIGN(const KvTableOptions options, kv_table_options(flags, spec));
  OCTAVO_ASSIGN(std::optional<SectionLog> log,
                open_sections(flags, "--kv-table", {spec}, text, {{"windows", options.windows}}));
  std::vector<KvTableRow> rows;
  {
    Progress progress("KV table", flags.output.json);
    const auto report = [&](std::string_view row, int64_t done, int64_t total) {
      progress.update(static_cast<double>(done), static_cast<double>(total), row);
    };
    OCTAVO_ASSIGN(rows, kv_table(spec, text, options, report, address(log)));
  }
  if (flags.output.json) {
    fmt::print("{}\n", json_of(rows).dump(2));
  } else {
    print(rows);
  }
  return {};
}

}  // namespace octavo
