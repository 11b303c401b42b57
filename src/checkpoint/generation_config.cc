// generation_config.json: sampling defaults and token ids.
#include "checkpoint/model_config.h"
#include "checkpoint/model_config_keys.h"

namespace octavo {

Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view where) {
  OCTAVO_ASSIGN(const Json root, parse_config_json(json, where));
  if (!root.is_object()) return fail({.what = "generation config is not a JSON object", .where = std::string(where)});
  const ConfigKeys keys(root, std::string(where));
  GenerationConfig config;
  OCTAVO_ASSIGN(config.eos_token_ids, keys.token_ids("eos_token_id"));
  OCTAVO_ASSIGN(const auto bos, keys.token_ids("bos_token_id"));
  if (!bos.empty()) config.bos_token_id = bos.front();
  const struct {
    const char* key;
    double low, high;
    std::optional<float>* out;
  } numbers[] = {{"temperature", 0.0, 1e6, &config.temperature},
                 {"top_p", 0.0, 1.0, &config.top_p},
                 {"min_p", 0.0, 1.0, &config.min_p},
                 {"repetition_penalty", 1e-6, 1e6, &config.repetition_penalty}};
  for (const auto& row : numbers) {
    OCTAVO_ASSIGN(const auto value, keys.number(row.key, row.low, row.high));
    if (value) *row.out = static_cast<float>(*value);
  }
  OCTAVO_ASSIGN(config.top_k, keys.integer("top_k", 0, INT32_MAX));
  OCTAVO_ASSIGN(config.max_new_tokens, keys.integer("max_new_tokens", 1, INT32_MAX));
  OCTAVO_ASSIGN(const auto do_sample, keys.boolean("do_sample"));
  config.do_sample = do_sample.value_or(false);
  return config;
}

}  // namespace octavo
