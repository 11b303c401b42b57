// config.json of a ModelConfig, in the spelling that every version of transformers reads.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/json.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_config_experts.h"

namespace octavo {
namespace {

// The shortest decimal that reads back as the same float: 1e-05, not 9.999999747378752e-06.
double shortest(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

Json rope_json(const RopeConfig& rope) {
  if (rope.type == RopeType::kDefault) return nullptr;
  Json json;
  const auto put_original = [&] { json["original_max_position_embeddings"] = rope.original_max_position; };
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kLinear:
      json["rope_type"] = "linear";
      break;
    case RopeType::kDynamic:
      json["rope_type"] = "dynamic";
      put_original();
      break;
    case RopeType::kLlama3:
      json["rope_type"] = "llama3";
      json["low_freq_factor"] = rope.low_freq_factor;
      json["high_freq_factor"] = rope.high_freq_factor;
      put_original();
      break;
    case RopeType::kYarn:
      json["rope_type"] = "yarn";
      json["beta_fast"] = rope.beta_fast;
      json["beta_slow"] = rope.beta_slow;
      if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
      if (rope.mscale != 0.0) json["mscale"] = rope.mscale;
      if (rope.mscale_all_dim != 0.0) json["mscale_all_dim"] = rope.mscale_all_dim;
      if (!rope.truncate) json["truncate"] = false;
      put_original();
      break;
  }
  json["factor"] = rope.factor;
  return json;
}

void put_windows(const ModelConfig& config, Json& json) {
  const bool qwen = config.model_type.starts_with("qwen");
  if (config.model_type == "llama") return;
  const auto widest = std::max_element(config.sliding_window.begin(), config.sliding_window.end());
  const int64_t window = widest == config.sliding_window.end() ? 0 : *widest;
  json["sliding_window"] = window == 0 ? Json(nullptr) : Json(window);
  if (qwen) json["use_sliding_window"] = window != 0;
  const bool mixed = std::any_of(config.sliding_window.begin(), config.sliding_window.end(),
                                 [window](int64_t layer) { return layer != window; });
  if (window == 0 || may_have_experts(config.model_type) || (!qwen && !mixed)) return;  // there all slide, or none
  Json types = Json::array();
  for (const int64_t layer : config.sliding_window)
    types.push_back(layer == 0 ? "full_attention" : "sliding_attention");
  json["layer_types"] = std::move(types);
}

void put_experts(const ModelConfig& config, Json& json) {
  const char* const count = config.model_type == "mixtral" ? "num_local_experts" : "num_experts";
  json[count] = config.experts ? config.experts->count : 0;
  if (!config.experts) return;
  json["num_experts_per_tok"] = config.experts->per_token;
  if (config.model_type == "mixtral") return;
  json["moe_intermediate_size"] = config.experts->intermediate_size;
  json["norm_topk_prob"] = config.experts->normalize;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (size_t i = 0; i < config.experts->layers.size(); ++i)
    if (!config.experts->layers[i]) json["mlp_only_layers"].push_back(i);
}

Json id_or_null(const std::optional<int64_t>& id) {
  return id ? Json(*id) : Json(nullptr);
}

}  // namespace

std::string write_model_config(const ModelConfig& config) {
  Json json;
  json["architectures"] = Json::array({config.architecture});
  json["model_type"] = config.model_type;
  json["hidden_act"] = "silu";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position;
  json["rms_norm_eps"] = shortest(config.rms_norm_eps);
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = rope_json(config.rope);
  if (config.model_type != "qwen2") json["attention_bias"] = config.o_bias;
  if (config.model_type == "llama") json["mlp_bias"] = config.mlp_bias;
  put_windows(config, json);
  if (may_have_experts(config.model_type)) put_experts(config, json);
  json["tie_word_embeddings"] = config.tied_embeddings;
  json["bos_token_id"] = id_or_null(config.bos_token_id);
  json["eos_token_id"] = config.eos_token_ids.empty()       ? Json(nullptr)
                         : config.eos_token_ids.size() == 1 ? Json(config.eos_token_ids.front())
                                                            : Json(config.eos_token_ids);
  json["pad_token_id"] = id_or_null(config.pad_token_id);
  json["torch_dtype"] = "bfloat16";
  return json.dump(2) + "\n";
}

}  // namespace octavo
