// ModelConfig: what config.json or GGUF metadata says about a decoder, as one plain struct.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "precision/plan_file.h"

namespace octavo {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position = 0;                     // yarn, llama3, dynamic: the context the model was trained on
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor;                // yarn: as given; see inverse_frequencies()
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn
  bool truncate = true;                                  // yarn

  bool operator==(const RopeConfig&) const = default;
};

// How the layers of a mixture of experts are built. Formulas: docs/semantics.md.
struct ExpertsConfig {
  int64_t count = 0, per_token = 0;  // experts of a layer, and how many of them a token passes
  int64_t intermediate_size = 0;     // of one expert
  bool normalize = false;            // a token's weights are divided by their sum
  std::vector<bool> layers;          // which layers have experts; the others are dense

  bool operator==(const ExpertsConfig&) const = default;
};

struct ModelConfig {
  std::string model_type;    // "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"
  std::string architecture;  // "LlamaForCausalLM"
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;  // the last of dense layers
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position = 0;
  float rms_norm_eps = 1e-6f;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // RMSNorm per head on q and k before RoPE
  bool tied_embeddings = false;
  int64_t down_hadamard = 0;            // down's inputs pass a Hadamard transform in blocks of this many; 0: none
  std::vector<int64_t> sliding_window;  // per layer: number of keys a token sees, itself included; 0 = all
  std::optional<ExpertsConfig> experts;
  RopeConfig rope;
  std::optional<int64_t> bos_token_id, pad_token_id;
  std::vector<int64_t> eos_token_ids;

  bool operator==(const ModelConfig&) const = default;

  // Tokens the model can hold: max_position, stretched by the scalings that stretch it (vLLM's rule; llama3 does not,
  // its max_position is already the long one).
  int64_t context_length() const;

  bool has_experts(int64_t layer) const { return experts && experts->layers[static_cast<size_t>(layer)]; }
  // Of all layers' rows between up and down: the widest, and the largest size that divides each.
  int64_t widest_intermediate() const;
  int64_t shared_intermediate() const;
  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  ModelShape shape() const;
  // Every linear layer, in order of use, lm_head last (also when it is tied to the embedding).
  std::vector<LinearModule> linear_modules() const;
};

// The plan of a request's scheme or plan file, with its KV formats laid over. Error: both at once, rules beside a plan
// file, a plan for another model.
Result<PrecisionPlan> make_plan(const ModelConfig& config, const PlanRequest& request);

// generation_config.json, united with config.json's token ids.
struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> bos_token_id;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_new_tokens;
  bool do_sample = false;
};

// The model types that can run.
const std::vector<std::string>& supported_model_types();

// Both spellings (rope_scaling; transformers 5 rope_parameters), text_config descended into, defaults per class.
// Errors name the key. An unsupported model type is an error that lists the supported ones.
Result<ModelConfig> parse_model_config(std::string_view json, std::string_view where);
Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view where);

// config.json for a BF16 folder of this model.
std::string write_model_config(const ModelConfig& config);

// Rotary frequencies [head_dim / 2] and the factor on cos and sin (1 except for yarn). Formulas: docs/semantics.md.
// kDynamic takes its base once, from factor x max_position (vLLM's rule), so that cached positions stay valid.
struct RopeTable {
  std::vector<float> inverse_frequencies;
  float attention_factor = 1.0f;
};
RopeTable inverse_frequencies(const ModelConfig& config);

}  // namespace octavo
