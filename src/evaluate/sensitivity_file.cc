#include "evaluate/sensitivity_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "evaluate/sensitivity_json.h"
#include "precision/model_shape_json.h"

namespace octavo {
namespace {

constexpr double kFreeBelow = 0.001, kWatchBelow = 0.01;
constexpr std::string_view kRoles[] = {"q_proj",  "k_proj",    "v_proj",  "o_proj",  "gate_proj",
                                       "up_proj", "down_proj", "lm_head", kKeyCache, kValueCache};

tl::unexpected<Error> bad(std::string_view where, std::string_view key, const Json* value, std::string_view expected) {
  return fail({.what = fmt::format("the sensitivity file has a wrong \"{}\"", key),
               .where = std::string(where),
               .found = value == nullptr ? "nothing" : value->dump(-1, ' ', true).substr(0, 80),
               .expected = std::string(expected),
               .remedy = "measure it: octavo sensitivity MODEL --text FILE --out FILE"});
}

const Json* find(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : &*found;
}

Result<double> number(const Json& object, const char* key, std::string_view where, double least) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < least)
    return bad(where, key, value, "a finite number");
  return value->get<double>();
}

Result<int64_t> whole(const Json& object, const char* key, std::string_view where, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 53;
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_number_integer() || value->get<double>() > static_cast<double>(kMost) ||
      value->get<int64_t>() < least)
    return bad(where, key, value, fmt::format("an integer from {}", least));
  return value->get<int64_t>();
}

Result<std::string> text(const Json& object, const char* key, std::string_view where) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_string()) return bad(where, key, value, "a string");
  return value->get<std::string>();
}

}  // namespace

std::string_view class_name(SensitivityClass value) {
  constexpr std::string_view kNames[] = {"free", "watch", "keep wide"};
  return kNames[static_cast<size_t>(value)];
}

double SensitivityEntry::loss() const {
  return std::max(std::expm1(kl), perplexity_change - 2 * perplexity_change_error);
}

SensitivityClass SensitivityEntry::verdict() const {
  const double value = loss();
  return value < kFreeBelow    ? SensitivityClass::kFree
         : value < kWatchBelow ? SensitivityClass::kWatch
                               : SensitivityClass::kKeepWide;
}

std::vector<std::string> measured_schemes(const Sensitivity& sensitivity, bool cache) {
  std::vector<std::string> names;
  for (const SensitivityEntry& entry : sensitivity.entries)
    if (entry.of_cache() == cache && std::find(names.begin(), names.end(), entry.scheme) == names.end())
      names.push_back(entry.scheme);
  return names;
}

Json json_of(const SensitivityEntry& e) {
  return {{"layer", e.layer},
          {"role", e.role},
          {"scheme", e.scheme},
          {"perplexity_change", e.perplexity_change},
          {"perplexity_change_error", e.perplexity_change_error},
          {"kl", e.kl},
          {"output_error", e.output_error},
          {"bytes", e.bytes},
          {"base_bytes", e.base_bytes},
          {"class", class_name(e.verdict())}};
}

Json json_of(const Sensitivity& s) {
  Json entries = Json::array();
  for (const SensitivityEntry& entry : s.entries) entries.push_back(json_of(entry));
  return {{"octavo_sensitivity", 1},    {"model", json_of(s.model)},    {"base", s.base},
          {"tokens", s.tokens},         {"context", s.context},         {"base_perplexity", s.base_perplexity},
          {"base_bytes", s.base_bytes}, {"entries", std::move(entries)}};
}

Result<SensitivityEntry> read_sensitivity_entry(const Json& value, std::string_view where) {
  SensitivityEntry entry;
  OCTAVO_ASSIGN(const int64_t layer, whole(value, "layer", where, -1));
  entry.layer = static_cast<int>(std::min<int64_t>(layer, INT32_MAX));
  OCTAVO_ASSIGN(entry.role, text(value, "role", where));
  const bool known = std::find(std::begin(kRoles), std::end(kRoles), entry.role) != std::end(kRoles);
  if (!known || (entry.layer < 0) != (entry.role == "lm_head"))
    return bad(where, "role", find(value, "role"), "q_proj .. down_proj, k_cache, v_cache; lm_head with layer -1");
  OCTAVO_ASSIGN(entry.scheme, text(value, "scheme", where));
  if (entry.of_cache() ? !kv_format(entry.scheme).has_value() : !find_scheme(entry.scheme).has_value())
    return bad(where, "scheme", find(value, "scheme"), entry.of_cache() ? "a KV format" : "a scheme");
  OCTAVO_ASSIGN(entry.perplexity_change, number(value, "perplexity_change", where, -1));
  OCTAVO_ASSIGN(entry.perplexity_change_error, number(value, "perplexity_change_error", where, 0));
  OCTAVO_ASSIGN(entry.kl, number(value, "kl", where, 0));
  OCTAVO_ASSIGN(entry.output_error, number(value, "output_error", where, 0));
  OCTAVO_ASSIGN(entry.bytes, whole(value, "bytes", where, 1));
  OCTAVO_ASSIGN(entry.base_bytes, whole(value, "base_bytes", where, 1));
  return entry;
}

std::string sensitivity_text(const Sensitivity& sensitivity) {
  return json_of(sensitivity).dump(1) + "\n";
}

Result<Sensitivity> parse_sensitivity(std::string_view json, const std::filesystem::path& path) {
  const std::string where = path.string();
  OCTAVO_ASSIGN(const Json file, parse_json(json, where));
  const Json* version = find(file, "octavo_sensitivity");
  if (version == nullptr || *version != 1) return bad(where, "octavo_sensitivity", version, "1");
  Sensitivity out;
  OCTAVO_ASSIGN(out.model, read_model_shape(file, path));
  OCTAVO_ASSIGN(out.base, text(file, "base", where));
  if (!find_scheme(out.base)) return bad(where, "base", find(file, "base"), "a scheme");
  OCTAVO_ASSIGN(out.tokens, whole(file, "tokens", where, 1));
  OCTAVO_ASSIGN(out.context, whole(file, "context", where, 2));
  OCTAVO_ASSIGN(out.base_perplexity, number(file, "base_perplexity", where, 0));
  OCTAVO_ASSIGN(out.base_bytes, whole(file, "base_bytes", where, 1));
  const Json* entries = find(file, "entries");
  if (entries == nullptr || !entries->is_array()) return bad(where, "entries", entries, "a list");
  for (const Json& value : *entries) {
    const std::string at = fmt::format("{}, entry {}", where, out.entries.size());
    OCTAVO_ASSIGN(SensitivityEntry entry, read_sensitivity_entry(value, at));
    if (entry.layer >= out.model.layers) return bad(at, "layer", find(value, "layer"), "a layer of the model");
    out.entries.push_back(std::move(entry));
  }
  return out;
}

Result<Sensitivity> read_sensitivity(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const std::string json, read_text_file(path, size_t{256} << 20));
  return parse_sensitivity(json, path);
}

}  // namespace octavo
