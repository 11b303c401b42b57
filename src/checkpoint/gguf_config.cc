// GGUF metadata -> ModelConfig.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/gguf.h"
#include "checkpoint/model_config_experts.h"

namespace octavo {
namespace {

struct Architecture {
  std::string_view gguf, model_type, architecture;
  bool qkv_bias, qk_norm;  // always
};
constexpr Architecture kArchitectures[] = {{"llama", "llama", "LlamaForCausalLM", false, false},
                                           {"qwen2", "qwen2", "Qwen2ForCausalLM", true, false},
                                           {"qwen3", "qwen3", "Qwen3ForCausalLM", false, true},
                                           {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", false, true}};

constexpr int64_t kMaxLayers = 4096, kMaxHeads = 65536;

// Look-ups of "ARCH.key" with the file's name in errors.
class Metadata {
 public:
  Metadata(const Gguf& gguf, std::string architecture) : gguf_(gguf), prefix_(std::move(architecture) + ".") {}

  std::string where(std::string_view key) const { return fmt::format("{}, {}{}", gguf_.path().string(), prefix_, key); }
  bool has(std::string_view key) const { return gguf_.find(prefix_ + std::string(key)) != nullptr; }
  std::optional<std::string> text(std::string_view key) const { return gguf_.text(prefix_ + std::string(key)); }

  // One number, or an array whose values are all the same.
  Result<int64_t> integer(std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high) const {
    const std::string full = prefix_ + std::string(key);
    std::optional<int64_t> value = gguf_.integer(full);
    if (const auto* list = gguf_.integers(full); list != nullptr && !list->empty()) {
      if (std::any_of(list->begin(), list->end(), [&](int64_t item) { return item != list->front(); }))
        return fail({.what = "GGUF value that differs from layer to layer is not supported", .where = where(key)});
      value = list->front();
    }
    if (!value && !has(key)) value = fallback;
    if (!value || *value < low || *value > high)
      return fail({.what = value ? "GGUF value is out of range" : "GGUF value is missing or of the wrong type",
                   .where = where(key),
                   .found = value ? fmt::format("{}", *value) : "",
                   .expected = fmt::format("an integer from {} to {}", low, high)});
    return *value;
  }

  Result<double> number(std::string_view key, std::optional<double> fallback, double low, double high) const {
    std::optional<double> value = gguf_.number(prefix_ + std::string(key));
    if (!value && !has(key)) value = fallback;
    if (!value || !(*value >= low && *value <= high))
      return fail({.what = value ? "GGUF value is out of range" : "GGUF value is missing or of the wrong type",
                   .where = where(key),
                   .found = value ? fmt::format("{}", *value) : "",
                   .expected = fmt::format("a number from {} to {}", low, high)});
    return *value;
  }

 private:
  const Gguf& gguf_;
  std::string prefix_;
};

const Gguf::Tensor* find_tensor(const Gguf& gguf, std::string_view name) {
  for (const Gguf::Tensor& tensor : gguf.tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Result<const Architecture*> find_architecture(const Gguf& gguf) {
  const auto name = gguf.text("general.architecture");
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (name && row.gguf == *name) return &row;
    known.append(known.empty() ? "" : ", ").append(row.gguf);
  }
  return fail({.what = name ? "model type is not supported" : "GGUF file does not name its architecture",
               .where = fmt::format("{}, general.architecture", gguf.path().string()),
               .found = name ? name->substr(0, 100) : "",
               .expected = "one of: " + known});
}

Result<void> read_sizes(const Gguf& gguf, const Metadata& meta, ModelConfig& config) {
  OCTAVO_ASSIGN(config.hidden_size, meta.integer("embedding_length", {}, 1, kMaxSize));
  OCTAVO_ASSIGN(config.intermediate_size, meta.integer("feed_forward_length", {}, 1, kMaxSize));
  OCTAVO_ASSIGN(config.num_layers, meta.integer("block_count", {}, 1, kMaxLayers));
  OCTAVO_ASSIGN(config.num_heads, meta.integer("attention.head_count", {}, 1, kMaxHeads));
  OCTAVO_ASSIGN(config.num_kv_heads, meta.integer("attention.head_count_kv", config.num_heads, 1, kMaxHeads));
  OCTAVO_ASSIGN(config.max_position, meta.integer("context_length", {}, 1, kMaxSize));
  OCTAVO_ASSIGN(const double eps, meta.number("attention.layer_norm_rms_epsilon", 1e-6, 1e-30, 1.0));
  config.rms_norm_eps = static_cast<float>(eps);
  if (config.num_heads % config.num_kv_heads != 0)
    return fail({.what = "head_count is not a multiple of head_count_kv",
                 .where = meta.where("attention.head_count"),
                 .found = fmt::format("{} and {}", config.num_heads, config.num_kv_heads)});
  std::optional<int64_t> head_dim;
  if (config.hidden_size % config.num_heads == 0) head_dim = config.hidden_size / config.num_heads;
  OCTAVO_ASSIGN(config.head_dim, meta.integer("attention.key_length", head_dim, 2, kMaxHeads));
  OCTAVO_ASSIGN(const int64_t value_dim, meta.integer("attention.value_length", config.head_dim, 1, kMaxHeads));
  OCTAVO_ASSIGN(const int64_t rotary, meta.integer("rope.dimension_count", config.head_dim, 1, kMaxHeads));
  if (config.head_dim % 2 != 0 || value_dim != config.head_dim || rotary != config.head_dim)
    return fail({.what = "heads of this shape are not supported",
                 .where = meta.where("attention.key_length"),
                 .found = fmt::format("keys {}, values {}, rotated {}", config.head_dim, value_dim, rotary),
                 .expected = "one even size for all three"});
  const Gguf::Tensor* embedding = find_tensor(gguf, "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] < 1 || embedding->shape[0] > kMaxSize)
    return fail({.what = "tensor is missing or has the wrong shape",
                 .where = fmt::format("{}, tensor token_embd.weight", gguf.path().string())});
  config.vocab_size = embedding->shape[0];
  return {};
}

// A llama with experts is a Mixtral. ggml divides a token's weights by their sum in both architectures.
Result<void> read_experts(const Gguf& gguf, const Metadata& meta, ModelConfig& config) {
  constexpr int64_t kSoftmax = 1;
  OCTAVO_ASSIGN(const int64_t count, meta.integer("expert_count", 0, 0, kMostExperts / config.num_layers));
  if (count == 0) return {};
  const auto refuse = [&](std::string_view key, int64_t found, std::string expected) {
    return fail({.what = "this kind of mixture of experts is not supported",
                 .where = meta.where(key),
                 .found = fmt::format("{}", found),
                 .expected = std::move(expected)});
  };
  if (config.model_type != "llama" && config.model_type != "qwen3_moe")
    return refuse("expert_count", count, "experts in llama (Mixtral) or qwen3moe");
  OCTAVO_ASSIGN(const int64_t gating, meta.integer("expert_gating_func", kSoftmax, 0, kMaxSize));
  if (gating > kSoftmax) return refuse("expert_gating_func", gating, "1: softmax");
  OCTAVO_ASSIGN(const int64_t shared, meta.integer("expert_shared_count", 0, 0, kMaxSize));
  if (shared > 0) return refuse("expert_shared_count", shared, "no shared experts");
  ExpertsConfig experts{.count = count, .normalize = true};
  OCTAVO_ASSIGN(experts.per_token, meta.integer("expert_used_count", {}, 1, count));
  OCTAVO_ASSIGN(experts.intermediate_size,
                meta.integer("expert_feed_forward_length", config.intermediate_size, 1, kMaxSize));
  for (int64_t i = 0; i < config.num_layers; ++i)
    experts.layers.push_back(find_tensor(gguf, fmt::format("blk.{}.ffn_gate_inp.weight", i)) != nullptr);
  if (std::find(experts.layers.begin(), experts.layers.end(), true) == experts.layers.end())
    return refuse("expert_count", count, "a layer with a router, ffn_gate_inp");
  config.experts = std::move(experts);
  if (config.model_type == "llama") {
    config.model_type = "mixtral";
    config.architecture = "MixtralForCausalLM";
  }
  return {};
}

// llama3 scaling is stored as its divisors, not its parameters: find the parameters that give them.
Result<void> read_rope_divisors(const Gguf& gguf, ModelConfig& config) {
  const Gguf::Tensor* tensor = find_tensor(gguf, "rope_freqs.weight");
  if (tensor == nullptr) return {};
  const auto count = static_cast<size_t>(config.head_dim / 2);
  const std::string where = fmt::format("{}, tensor rope_freqs.weight", gguf.path().string());
  if (tensor->type != 0 || tensor->shape != Shape{config.head_dim / 2})
    return fail({.what = "tensor has the wrong shape or type",
                 .where = where,
                 .found = shape_text(tensor->shape),
                 .expected = fmt::format("F32 [{}]", count)});
  std::vector<float> divisors(count);
  std::memcpy(divisors.data(), tensor->data.data(), tensor->data.size());
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0f; })) return {};
  const double factor = divisors.back();
  if (config.rope.type == RopeType::kDefault && factor > 1.0 && factor < 1e6) {
    ModelConfig plain = config;
    const RopeTable base = inverse_frequencies(plain);
    plain.rope.type = RopeType::kLlama3;
    plain.rope.factor = factor;
    for (int64_t original = 512; original <= (int64_t{1} << 20); original *= 2) {
      plain.rope.original_max_position = original;
      const RopeTable scaled = inverse_frequencies(plain);
      bool same = true;
      for (size_t i = 0; i < count; ++i)
        same =
            same && std::fabs(base.inverse_frequencies[i] / scaled.inverse_frequencies[i] / divisors[i] - 1.0f) < 1e-4f;
      if (!same) continue;
      config.rope = plain.rope;
      return {};
    }
  }
  return fail({.what = "RoPE frequencies of the GGUF file are not a llama3 scaling that Octavo knows",
               .where = where,
               .expected = "low_freq_factor 1, high_freq_factor 4, and a power of two as the original context"});
}

Result<void> read_rope(const Gguf& gguf, const Metadata& meta, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  OCTAVO_ASSIGN(rope.theta, meta.number("rope.freq_base", 10000.0, 1.0 + 1e-6, 1e18));
  const bool old_spelling = meta.has("rope.scale_linear");
  const std::string type = meta.text("rope.scaling.type").value_or(old_spelling ? "linear" : "none");
  OCTAVO_ASSIGN(const double factor,
                meta.number(old_spelling ? "rope.scale_linear" : "rope.scaling.factor", 1.0, 0.0, 1e6));
  if (type == "linear" && factor > 1.0) {
    rope.type = RopeType::kLinear;
    rope.factor = factor;
  } else if (type == "yarn" && factor >= 1.0) {
    rope.type = RopeType::kYarn;
    rope.factor = factor;
    OCTAVO_ASSIGN(rope.original_max_position,
                  meta.integer("rope.scaling.original_context_length", config.max_position, 1, kMaxSize));
    OCTAVO_ASSIGN(rope.beta_fast, meta.number("rope.scaling.yarn_beta_fast", 32.0, 1e-6, 1e6));
    OCTAVO_ASSIGN(rope.beta_slow, meta.number("rope.scaling.yarn_beta_slow", 1.0, 1e-6, 1e6));
    // ggml multiplies what it computes from the factor by attn_factor.
    OCTAVO_ASSIGN(const double attention, meta.number("rope.scaling.attn_factor", 1.0, 1e-6, 1e6));
    if (attention != 1.0) rope.attention_factor = attention * (0.1 * std::log(factor) + 1.0);
  } else if (type != "none" && type != "linear") {
    return fail({.what = "RoPE scaling type is not supported",
                 .where = meta.where("rope.scaling.type"),
                 .found = type.substr(0, 100),
                 .expected = "none, linear or yarn"});
  }
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (find_tensor(gguf, name) != nullptr)
      return fail({.what = "RoPE scaling type is not supported",
                   .where = fmt::format("{}, tensor {}", gguf.path().string(), name),
                   .found = "longrope"});
  return read_rope_divisors(gguf, config);
}

Result<void> read_tokens(const Gguf& gguf, ModelConfig& config) {
  const auto id = [&](const char* key) -> std::optional<int64_t> {
    const auto value = gguf.integer(key);
    return value && *value >= 0 && *value <= kMaxSize ? value : std::nullopt;
  };
  config.bos_token_id = id("tokenizer.ggml.bos_token_id");
  config.pad_token_id = id("tokenizer.ggml.padding_token_id");
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const auto end = id(key);
    auto& ids = config.eos_token_ids;
    if (end && std::find(ids.begin(), ids.end(), *end) == ids.end()) ids.push_back(*end);
  }
  return {};
}

}  // namespace

Result<ModelConfig> model_config_from_gguf(const Gguf& gguf) {
  OCTAVO_ASSIGN(const Architecture* row, find_architecture(gguf));
  const Metadata meta(gguf, std::string(row->gguf));
  ModelConfig config;
  config.model_type = row->model_type;
  config.architecture = row->architecture;
  OCTAVO_TRY(read_sizes(gguf, meta, config));
  OCTAVO_TRY(read_experts(gguf, meta, config));
  config.tied_embeddings = find_tensor(gguf, "output.weight") == nullptr;
  config.qkv_bias = row->qkv_bias || find_tensor(gguf, "blk.0.attn_q.bias") != nullptr;
  config.o_bias = find_tensor(gguf, "blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = find_tensor(gguf, "blk.0.ffn_up.bias") != nullptr;
  config.qk_norm = row->qk_norm;
  OCTAVO_ASSIGN(const int64_t window, meta.integer("attention.sliding_window", 0, 0, kMaxSize));
  config.sliding_window.assign(static_cast<size_t>(config.num_layers), 0);
  if (window > 0 && window < config.max_position) {
    if (config.model_type != "llama" || meta.has("attention.sliding_window_pattern"))
      return fail({.what = "sliding window of this GGUF architecture is not supported",
                   .where = meta.where("attention.sliding_window"),
                   .found = fmt::format("{}", window)});
    config.model_type = "mistral";
    config.architecture = "MistralForCausalLM";
    config.sliding_window.assign(static_cast<size_t>(config.num_layers), window);
  }
  OCTAVO_TRY(read_rope(gguf, meta, config));
  OCTAVO_TRY(read_tokens(gguf, config));
  return config;
}

}  // namespace octavo
