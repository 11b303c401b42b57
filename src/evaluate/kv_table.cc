#include "evaluate/kv_table.h"

#include <algorithm>

#include "precision/kv_format.h"

namespace octavo {

Result<KvChoice> parse_kv_choice(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) {
    OCTAVO_TRY(parse_kv(text));
    return KvChoice{.both = std::string(text), .k = {}, .v = {}};
  }
  KvChoice choice{.both = {}, .k = std::string(text.substr(0, slash)), .v = std::string(text.substr(slash + 1))};
  OCTAVO_TRY(parse_kv(choice.k, KvPart::kK));
  OCTAVO_TRY(parse_kv(choice.v, KvPart::kV));
  return choice;
}

PlanRequest with_kv(PlanRequest request, const KvChoice& choice) {
  request.kv_cache_dtype = choice.both;
  request.k_dtype = choice.k;
  request.v_dtype = choice.v;
  return request;
}

std::vector<KvChoice> kv_choices(const Checkpoint& checkpoint) {
  std::vector<std::string> names = {
      "fp8_e4m3:dynamic",      "fp8_e5m2:dynamic",  "int8:dynamic",      "fp8_e4m3:dynamic/bf16",
      "bf16/fp8_e4m3:dynamic", "int8:dynamic/bf16", "bf16/int8:dynamic", "int8:dynamic/fp8_e4m3:dynamic",
      "fp8_e4m3:dynamic:wide4"};
  const int64_t layers = checkpoint.config().num_layers;
  if (layers > 2) names.push_back(fmt::format("fp8_e4m3:dynamic:skip0+{}", layers - 1));
  if (const KvCalibration* calibration = checkpoint.kv_calibration()) {
    for (const char* name : {"fp8_e4m3:static", "fp8_e4m3:tensor", "int8:static", "fp8_e4m3:channel", "int8:channel",
                             "fp8_e4m3:block1024", "int8:block1024", "int8:static:wide4", "int8:channel:wide4"})
      names.push_back(name);
    const bool refit = std::any_of(calibration->layers.begin(), calibration->layers.end(),
                                   [](const KvCalibration::Layer& layer) { return layer.temperature != 1; });
    // The factors were fitted to the folder's own cache.
    if (refit && !calibration->kv_cache.empty())
      names.push_back(calibration->kv_cache +
                      (calibration->kv_cache.find(":temperature") == std::string::npos ? ":temperature" : ""));
  }
  std::vector<KvChoice> choices;
  choices.reserve(names.size());
  for (const std::string& name : names) choices.push_back(parse_kv_choice(name).value());
  return choices;
}

Result<std::vector<KvTableRow>> kv_table(const ModelSpec& spec, std::string_view text, const KvTableOptions& options,
                                         const std::function<void(std::string_view, int64_t, int64_t)>& progress) {
  ModelSpec wide = spec;
  wide.options.plan = with_kv(spec.options.plan, {.both = "bf16", .k = {}, .v = {}});
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
      row.bytes_per_token = candidate->kv_geometry().bytes_per_token(context);
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
