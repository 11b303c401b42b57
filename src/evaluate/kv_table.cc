#include "evaluate/kv_table.h"

#include <algorithm>

namespace octavo {

Result<KvChoice> parse_kv_choice(std::string_view text) {
  const size_t slash = text.find('/');
  KvChoice choice;
  choice.k = text.substr(0, slash);
  choice.v = slash == std::string_view::npos ? choice.k : std::string(text.substr(slash + 1));
  for (const std::string* name : {&choice.k, &choice.v}) {
    if (auto known = kv_format(*name); !known) return fail(std::move(known).error());
  }
  return choice;
}

PlanRequest with_kv(PlanRequest request, const KvChoice& choice) {
  request.kv_cache_dtype.clear();
  request.k_dtype = choice.k;
  request.v_dtype = choice.v;
  return request;
}

Result<std::vector<KvTableRow>> kv_table(const ModelSpec& spec, std::string_view text, const KvTableOptions& options,
                                         const std::function<void(std::string_view, int64_t, int64_t)>& progress) {
  ModelSpec wide = spec;
  wide.options.plan = with_kv(spec.options.plan, {"bf16", "bf16"});
  OCTAVO_ASSIGN(const std::unique_ptr<Model> base, Model::load(wide.path, wide.options));
  std::vector<KvTableRow> rows;
  int64_t done = 0;
  const auto total = static_cast<int64_t>(options.choices.size() * options.contexts.size());
  for (const KvChoice& choice : options.choices) {
    ModelSpec lowered = spec;
    lowered.options.plan = with_kv(spec.options.plan, choice);
    OCTAVO_ASSIGN(const std::unique_ptr<Model> candidate, Model::load(lowered.path, lowered.options));
    for (const int64_t context : options.contexts) {
      KvTableRow row{.choice = choice, .context = context};
      row.bytes_per_token = candidate->kv_geometry().bytes_per_token();
      const int64_t windows = options.windows > 0 ? options.windows : std::max<int64_t>(1, 8192 / context);
      OCTAVO_ASSIGN(row.result, compare(*base, *candidate, text, {.context = context, .windows = windows}));
      rows.push_back(std::move(row));
      if (progress) progress(choice.name(), ++done, total);
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const KvTableRow& a, const KvTableRow& b) { return a.context < b.context; });
  return rows;
}

}  // namespace octavo
