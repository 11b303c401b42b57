#include "evaluate/kv_table.h"

#include <algorithm>

#include "evaluate/compare_json.h"
#include "evaluate/section_log.h"
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
    // The factors were fitted to the folder's own cache: where that has an option for them.
    std::string own = calibration->kv_cache;
    if (own.find(":temperature") == std::string::npos) own += ":temperature";
    if (refit && !calibration->kv_cache.empty() && parse_kv_choice(own)) names.push_back(own);
  }
  std::vector<KvChoice> choices;
  choices.reserve(names.size());
  for (const std::string& name : names) choices.push_back(parse_kv_choice(name).value());
  return choices;
}

namespace {

// Everything that can be wrong with the contexts, before anything long.
Result<void> check_contexts(const ModelSpec& spec, std::string_view text, const KvTableOptions& options) {
  OCTAVO_ASSIGN(const PlannedCheckpoint model, open_planned(spec.path, spec.options));
  const int64_t most = model.checkpoint.config().context_length();
  for (const int64_t context : options.contexts)
    if (context < 2 || context > most)
      return fail({.what = "a context is out of range",
                   .where = "--contexts",
                   .found = fmt::format("{}", context),
                   .expected = fmt::format("2 to {}, the model's context", most)});
  OCTAVO_ASSIGN(const Tokenizer tokenizer, Tokenizer::open(spec.path));
  const auto tokens = static_cast<int64_t>(tokenizer.encode(text, false).size());
  for (const int64_t context : options.contexts)
    if (tokens < context)
      return fail({.what = "the text is shorter than one window",
                   .where = "--text",
                   .found = fmt::format("{} tokens", tokens),
                   .expected = fmt::format("at least {}", context),
                   .remedy = "give a longer text, or smaller --contexts"});
  return {};
}

// What a log keeps of a row.
Json row_json(Model& base, Model& candidate, std::string_view text, int64_t context, int64_t windows) {
  const int64_t count = windows > 0 ? windows : std::max<int64_t>(1, 8192 / context);
  const auto result = compare(base, candidate, text, {.context = context, .windows = count});
  Json row = {{"bytes_per_token", candidate.kv_geometry().bytes_per_token(context)},
              {"bf16_bytes_per_token", base.kv_geometry().bytes_per_token(context)}};
  if (result)
    row["result"] = whole_json(*result);
  else
    row["why_not"] = result.error().line();
  return row;
}

bool read_row(const Json& json, KvTableRow& row) {
  const auto number = [&](const char* key, double& value) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number()) return false;
    value = json[key].get<double>();
    return true;
  };
  if (!number("bytes_per_token", row.bytes_per_token) || !number("bf16_bytes_per_token", row.bf16_bytes_per_token))
    return false;
  if (json.contains("why_not") && json["why_not"].is_string()) {
    row.why_not = json["why_not"].get<std::string>();
    return true;
  }
  if (json.contains("result")) row.result = read_compare(json["result"]);
  return row.result.has_value();
}

}  // namespace

Result<std::vector<KvTableRow>> kv_table(const ModelSpec& spec, std::string_view text, const KvTableOptions& options,
                                         const std::function<void(std::string_view, int64_t, int64_t)>& progress,
                                         SectionLog* log) {
  OCTAVO_TRY(check_contexts(spec, text, options));
  ModelSpec wide = spec;
  wide.options.plan = with_kv(spec.options.plan, {.both = "bf16", .k = {}, .v = {}});
  std::unique_ptr<Model> base;
  std::vector<KvTableRow> rows;
  int64_t done = 0;
  const auto total = static_cast<int64_t>(options.choices.size() * options.contexts.size());
  for (const KvChoice& choice : options.choices) {
    ModelSpec lowered = spec;
    lowered.options.plan = with_kv(spec.options.plan, choice);
    std::unique_ptr<Model> candidate;
    for (const int64_t context : options.contexts) {
      KvTableRow row{.choice = choice, .context = context};
      const std::string name = fmt::format("{} tokens, {}", context, choice.name());
      OCTAVO_ASSIGN(const Json measured, section(log, name, [&]() -> Result<Json> {
                      if (base == nullptr) {
                        OCTAVO_ASSIGN(base, Model::load(wide.path, wide.options));
                      }
                      if (candidate == nullptr) {
                        OCTAVO_ASSIGN(candidate, Model::load(lowered.path, lowered.options));
                      }
                      return row_json(*base, *candidate, text, context, options.windows);
                    }));
      if (!read_row(measured, row)) return fail(log->refuse(name));
      rows.push_back(std::move(row));
      if (progress) progress(choice.name(), ++done, total);
    }
  }
  const auto measured = std::find_if(rows.begin(), rows.end(), [](const KvTableRow& row) { return row.result; });
  if (!rows.empty() && measured == rows.end())
    return fail(
        {.what = "none of the formats could be measured", .where = spec.path.string(), .found = rows[0].why_not});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const KvTableRow& a, const KvTableRow& b) { return a.context < b.context; });
  return rows;
}

}  // namespace octavo
