#include "checkpoint/model_config_rope.h"

#include <fmt/format.h>

namespace octavo {
namespace {

constexpr double kMaxTheta = 1e18, kMaxFactor = 1e6;

struct TypeName {
  std::string_view name;
  RopeType type;
};
// "mrope" gives text the same positions as "default".
constexpr TypeName kTypes[] = {{"default", RopeType::kDefault}, {"linear", RopeType::kLinear},
                               {"dynamic", RopeType::kDynamic}, {"yarn", RopeType::kYarn},
                               {"llama3", RopeType::kLlama3},   {"mrope", RopeType::kDefault}};

Result<RopeType> read_type(const ConfigKeys& dict) {
  OCTAVO_ASSIGN(auto name, dict.text("rope_type"));
  if (!name) {
    OCTAVO_ASSIGN(name, dict.text("type"));
  }
  if (!name) return RopeType::kDefault;
  for (const TypeName& row : kTypes)
    if (row.name == *name) return row.type;
  return fail({.what = "RoPE scaling type is not supported",
               .where = dict.where(),
               .found = name->substr(0, 100),
               .expected = "default, linear, dynamic, yarn or llama3"});
}

Result<void> read_partial(const ConfigKeys& keys) {
  OCTAVO_ASSIGN(const auto partial, keys.number("partial_rotary_factor", -1e9, 1e9));
  if (partial && *partial != 1.0)
    return fail(keys.bad("partial_rotary_factor", "1 (heads that are rotated in part are not supported)"));
  return {};
}

// low <= value, or the fallback where the key is absent.
Result<void> read_number(const ConfigKeys& dict, std::string_view key, double low, double high, double& out) {
  OCTAVO_ASSIGN(const auto value, dict.number(key, low, high));
  out = value.value_or(out);
  return {};
}

Result<double> read_factor(const ConfigKeys& dict, std::optional<double> fallback) {
  OCTAVO_ASSIGN(const auto factor, dict.number("factor", 1.0, kMaxFactor));
  if (factor) return *factor;
  if (fallback && *fallback >= 1.0) return *fallback;
  return fail({.what = "RoPE scaling has no factor", .where = dict.where(), .expected = "a number of at least 1"});
}

Result<void> read_yarn(const ConfigKeys& dict, RopeConfig& rope) {
  OCTAVO_TRY(read_number(dict, "beta_fast", 1e-6, 1e6, rope.beta_fast));
  OCTAVO_TRY(read_number(dict, "beta_slow", 1e-6, 1e6, rope.beta_slow));
  OCTAVO_TRY(read_number(dict, "mscale", 0.0, 1e3, rope.mscale));
  OCTAVO_TRY(read_number(dict, "mscale_all_dim", 0.0, 1e3, rope.mscale_all_dim));
  OCTAVO_ASSIGN(rope.attention_factor, dict.number("attention_factor", 1e-6, 1e6));
  OCTAVO_ASSIGN(const auto truncate, dict.boolean("truncate"));
  rope.truncate = truncate.value_or(true);
  return {};
}

Result<void> read_llama3(const ConfigKeys& dict, RopeConfig& rope) {
  OCTAVO_TRY(read_number(dict, "low_freq_factor", 1e-6, 1e6, rope.low_freq_factor));
  OCTAVO_TRY(read_number(dict, "high_freq_factor", 1e-6, 1e6, rope.high_freq_factor));
  if (rope.low_freq_factor >= rope.high_freq_factor)
    return fail({.what = "llama3 RoPE scaling needs low_freq_factor below high_freq_factor",
                 .where = dict.where(),
                 .found = fmt::format("{} and {}", rope.low_freq_factor, rope.high_freq_factor)});
  return {};
}

// One dictionary (or the top level alone, where `dict` is it) -> RopeConfig.
Result<RopeConfig> read_dict(const ConfigKeys& dict, const ConfigKeys& keys, const RopeDefaults& defaults) {
  RopeConfig rope;
  OCTAVO_TRY(read_partial(dict));
  OCTAVO_ASSIGN(auto theta, dict.number("rope_theta", 1.0 + 1e-6, kMaxTheta));
  if (!theta) {
    OCTAVO_ASSIGN(theta, keys.number("rope_theta", 1.0 + 1e-6, kMaxTheta));
  }
  rope.theta = theta.value_or(defaults.theta);
  OCTAVO_ASSIGN(rope.type, read_type(dict));
  if (rope.type == RopeType::kDefault) return rope;
  if (rope.type == RopeType::kLinear) {
    OCTAVO_ASSIGN(rope.factor, read_factor(dict, std::nullopt));
    return rope;
  }
  OCTAVO_ASSIGN(auto original, dict.integer("original_max_position_embeddings", 1, INT32_MAX));
  if (!original) {
    OCTAVO_ASSIGN(original, keys.integer("original_max_position_embeddings", 1, INT32_MAX));
  }
  rope.original_max_position = original.value_or(defaults.max_position);
  std::optional<double> ratio;
  if (original && rope.type == RopeType::kYarn)
    ratio = static_cast<double>(defaults.max_position) / static_cast<double>(*original);
  OCTAVO_ASSIGN(rope.factor, read_factor(dict, ratio));
  if (rope.type == RopeType::kYarn) OCTAVO_TRY(read_yarn(dict, rope));
  if (rope.type == RopeType::kLlama3) OCTAVO_TRY(read_llama3(dict, rope));
  return rope;
}

// rope_parameters may be one dictionary, or one per layer type; then they must agree.
Result<RopeConfig> read_parameters(const Json& value, std::string_view key, const ConfigKeys& keys,
                                   const RopeDefaults& defaults) {
  const std::string where = fmt::format("{}, {}", keys.where(), key);
  if (!value.is_object()) return fail(keys.bad(key, "an object"));
  std::optional<RopeConfig> nested;
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    const auto at = value.find(layer_type);
    if (at == value.end() || at->is_null()) continue;
    if (!at->is_object())
      return fail({.what = "bad RoPE parameters", .where = where, .expected = "an object per layer type"});
    const ConfigKeys dict(*at, fmt::format("{}, {}", where, layer_type));
    OCTAVO_ASSIGN(const RopeConfig rope, read_dict(dict, keys, defaults));
    if (nested && !(*nested == rope))
      return fail({.what = "RoPE parameters that differ between layer types are not supported", .where = where});
    nested = rope;
  }
  if (nested) return *nested;
  return read_dict(ConfigKeys(value, where), keys, defaults);
}

}  // namespace

Result<RopeConfig> read_rope(const ConfigKeys& keys, const RopeDefaults& defaults) {
  OCTAVO_TRY(read_partial(keys));
  std::optional<RopeConfig> rope;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* value = keys.find(key);
    if (value == nullptr) continue;
    OCTAVO_ASSIGN(const RopeConfig read, read_parameters(*value, key, keys, defaults));
    if (rope && !(*rope == read))
      return fail({.what = "rope_parameters and rope_scaling disagree", .where = keys.where()});
    rope = read;
  }
  if (rope) return *rope;
  RopeConfig plain;
  OCTAVO_ASSIGN(const auto theta, keys.number("rope_theta", 1.0 + 1e-6, kMaxTheta));
  plain.theta = theta.value_or(defaults.theta);
  return plain;
}

}  // namespace octavo
