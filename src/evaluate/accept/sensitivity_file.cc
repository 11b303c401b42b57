#include "evaluate/accept/sensitivity_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/file.h"

namespace octavo {
namespace {

constexpr std::array<std::string_view, 10> kRoles = {"q_proj",  "k_proj",    "v_proj",  "o_proj",  "gate_proj",
                                                     "up_proj", "down_proj", "k_cache", "v_cache", "lm_head"};
constexpr std::array<std::string_view, 3> kClasses = {"free", "watch", "keep wide"};

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, const Json& value) {
  return value.is_string() && std::find(names.begin(), names.end(), value.get<std::string_view>()) != names.end();
}

Result<void> check_model(const Json& model, const ModelConfig& config, const std::string& where) {
  const Json expected = {{"architecture", config.architecture},
                         {"layers", config.num_layers},
                         {"hidden_size", config.hidden_size},
                         {"intermediate_size", config.intermediate_size},
                         {"vocabulary", config.vocab_size}};
  for (const auto& [key, value] : expected.items()) {
    const Json found = model.value(key, Json());
    if (found != value)
      return fail({.what = fmt::format("the sensitivity is of another model: \"{}\" differs", key),
                   .where = where,
                   .found = found.dump(),
                   .expected = value.dump(),
                   .remedy = "measure this model with `octavo sensitivity`"});
  }
  return {};
}

Result<void> check_entry(const Json& entry, size_t index, const ModelConfig& config, const std::string& where) {
  const auto wrong = [&](std::string_view key, std::string expected) {
    return fail({.what = fmt::format("entry {} has no usable \"{}\"", index, key),
                 .where = where,
                 .found = entry.is_object() ? entry.value(std::string(key), Json()).dump() : entry.type_name(),
                 .expected = std::move(expected)});
  };
  if (!entry.is_object()) return wrong("layer", "an object");
  if (!is_one_of(kRoles, entry.value("role", Json()))) return wrong("role", fmt::format("{}", fmt::join(kRoles, ", ")));
  const Json layer = entry.value("layer", Json());
  const bool head = entry["role"] == "lm_head";
  if (!layer.is_number_integer() || (!head && (layer < 0 || layer >= config.num_layers)))
    return wrong("layer", fmt::format("0 to {}", config.num_layers - 1));
  if (!is_one_of(kClasses, entry.value("class", Json())))
    return wrong("class", fmt::format("{}", fmt::join(kClasses, ", ")));
  if (!entry.value("scheme", Json()).is_string()) return wrong("scheme", "a scheme's name");
  const Json change = entry.value("perplexity_change", Json("missing"));
  if (!change.is_number() && !change.is_null()) return wrong("perplexity_change", "a number, or null: not finite");
  return {};
}

}  // namespace

Result<Json> read_sensitivity(const std::filesystem::path& path, const ModelConfig& config) {
  const std::string where = path.string();
  OCTAVO_ASSIGN(const std::string text, read_text_file(path, size_t{64} << 20));
  OCTAVO_ASSIGN(Json json, parse_json(text, where));
  if (!json.is_object() || json.value("octavo_sensitivity", Json()) != 1)
    return fail({.what = "not a sensitivity file",
                 .where = where,
                 .expected = "\"octavo_sensitivity\": 1, as `octavo sensitivity` writes it"});
  const Json model = json.value("model", Json());
  OCTAVO_TRY(check_model(model.is_object() ? model : Json::object(), config, where));
  const auto entries = json.find("entries");
  if (entries == json.end() || !entries->is_array() || entries->empty())
    return fail({.what = "the sensitivity file has no entries", .where = where});
  for (size_t i = 0; i < entries->size(); ++i) OCTAVO_TRY(check_entry((*entries)[i], i, config, where));
  return json;
}

Json sensitivity_summary(const Json& sensitivity) {
  const Json& entries = sensitivity["entries"];
  std::vector<std::string> schemes;
  for (const Json& entry : entries)
    if (std::find(schemes.begin(), schemes.end(), entry["scheme"]) == schemes.end()) schemes.push_back(entry["scheme"]);
  Json out = Json::array();
  for (const std::string& scheme : schemes) {
    int64_t counts[kClasses.size()] = {};
    std::vector<std::pair<double, size_t>> changes;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i]["scheme"] != scheme) continue;
      ++counts[std::find(kClasses.begin(), kClasses.end(), entries[i]["class"].get<std::string_view>()) -
               kClasses.begin()];
      const Json& change = entries[i]["perplexity_change"];
      changes.emplace_back(change.is_number() ? change.get<double>() : HUGE_VAL, i);
    }
    std::stable_sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    Json summary = {{"scheme", scheme},       {"layers", sensitivity["model"]["layers"]},
                    {"free", counts[0]},      {"watch", counts[1]},
                    {"keep_wide", counts[2]}, {"worst", Json::array()}};
    for (size_t i = 0; i < std::min<size_t>(10, changes.size()); ++i) summary["worst"].push_back(changes[i].second);
    std::erase_if(changes, [](const auto& change) { return change.first == HUGE_VAL; });
    if (!changes.empty()) {
      summary["highest"] = changes.front().first;
      summary["lowest"] = changes.back().first;
      std::erase_if(changes, [](const auto& change) { return change.first < 1e-5; });
      if (!changes.empty()) summary["lowest_positive"] = changes.back().first;
    }
    out.push_back(std::move(summary));
  }
  return out;
}

}  // namespace octavo
