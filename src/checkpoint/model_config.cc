#include "checkpoint/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/model_config_experts.h"
#include "checkpoint/model_config_keys.h"
#include "checkpoint/model_config_rope.h"

namespace octavo {
namespace {

// What a class of transformers assumes where a key is absent, and which keys it heeds.
struct ModelClass {
  std::string_view type, architecture;
  int64_t vocab, hidden, intermediate, layers, heads;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t max_position;
  int64_t sliding_window = 0;  // 0: the key does not count; kNoWindow: none where it is absent
  bool window_switch = false;  // the window counts only with use_sliding_window
  bool window_layers = false;  // ... and from layer max_window_layers on
  bool layer_types = false;    // honours layer_types
  bool bias_keys = false;      // attention_bias counts
  bool mlp_bias_key = false, qkv_bias = false, qk_norm = false;
  std::optional<int64_t> bos = {}, eos = {};
  double eps = 1e-6, theta = 10000.0;
};

constexpr int64_t kNoWindow = -1;
constexpr int64_t kMaxWindowLayers = 28;

const ModelClass kClasses[] = {
    {.type = "llama",
     .architecture = "LlamaForCausalLM",
     .vocab = 32000,
     .hidden = 4096,
     .intermediate = 11008,
     .layers = 32,
     .heads = 32,
     .max_position = 2048,
     .bias_keys = true,
     .mlp_bias_key = true,
     .bos = 1,
     .eos = 2},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .vocab = 32000,
     .hidden = 4096,
     .intermediate = 14336,
     .layers = 32,
     .heads = 32,
     .kv_heads = 8,
     .max_position = 131072,
     .sliding_window = 4096,
     .layer_types = true,
     .bos = 1,
     .eos = 2},
    {.type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .vocab = 32000,
     .hidden = 4096,
     .intermediate = 14336,
     .layers = 32,
     .heads = 32,
     .kv_heads = 8,
     .max_position = 131072,
     .sliding_window = kNoWindow,
     .bos = 1,
     .eos = 2,
     .eps = 1e-5,
     .theta = 1e6},
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .vocab = 151936,
     .hidden = 4096,
     .intermediate = 22016,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .max_position = 32768,
     .sliding_window = 4096,
     .window_switch = true,
     .window_layers = true,
     .layer_types = true,
     .qkv_bias = true},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .vocab = 151936,
     .hidden = 4096,
     .intermediate = 22016,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 128,
     .max_position = 32768,
     .sliding_window = 4096,
     .window_switch = true,
     .window_layers = true,
     .layer_types = true,
     .bias_keys = true,
     .qk_norm = true},
    {.type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .vocab = 151936,
     .hidden = 2048,
     .intermediate = 6144,
     .layers = 24,
     .heads = 32,
     .kv_heads = 4,
     .max_position = 32768,
     .sliding_window = 4096,
     .window_switch = true,
     .bias_keys = true,
     .qk_norm = true},
};

constexpr int64_t kMaxLayers = 4096, kMaxHeads = 65536, kMaxHeadDim = 65536;

Result<const ModelClass*> find_class(const ConfigKeys& keys, const std::optional<std::string>& type) {
  for (const ModelClass& row : kClasses)
    if (type && row.type == *type) return &row;
  std::string names;
  for (const ModelClass& row : kClasses) names.append(names.empty() ? "" : ", ").append(row.type);
  return fail({.what = type ? "model type is not supported" : "config has no model_type",
               .where = keys.where(),
               .found = type ? type->substr(0, 100) : "",
               .expected = "one of: " + names});
}

Result<std::string> read_architecture(const ConfigKeys& keys, const ModelClass& model) {
  const Json* list = keys.find("architectures");
  if (list == nullptr) return std::string(model.architecture);
  if (!list->is_array() || list->empty() || !list->front().is_string())
    return fail(keys.bad("architectures", "a list of class names"));
  const auto name = list->front().get<std::string>();
  if (!name.ends_with("ForCausalLM"))
    return fail(keys.bad("architectures", fmt::format("[\"{}\"]", model.architecture)));
  return name;
}

Result<void> read_sizes(const ConfigKeys& keys, const ModelClass& model, ModelConfig& config) {
  const struct {
    std::string_view key;
    int64_t fallback, high;
    int64_t* out;
  } rows[] = {
      {"vocab_size", model.vocab, kMaxSize, &config.vocab_size},
      {"hidden_size", model.hidden, kMaxSize, &config.hidden_size},
      {"intermediate_size", model.intermediate, kMaxSize, &config.intermediate_size},
      {"num_hidden_layers", model.layers, kMaxLayers, &config.num_layers},
      {"num_attention_heads", model.heads, kMaxHeads, &config.num_heads},
      {"max_position_embeddings", model.max_position, kMaxSize, &config.max_position},
  };
  for (const auto& row : rows) {
    OCTAVO_ASSIGN(const auto value, keys.integer(row.key, 1, row.high));
    *row.out = value.value_or(row.fallback);
  }
  OCTAVO_ASSIGN(const auto kv_heads, keys.integer("num_key_value_heads", 1, kMaxHeads));
  const bool kv_default = !keys.present("num_key_value_heads") && model.kv_heads > 0;
  config.num_kv_heads = kv_heads.value_or(kv_default ? model.kv_heads : config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0)
    return fail({.what = "num_attention_heads is not a multiple of num_key_value_heads",
                 .where = keys.where(),
                 .found = fmt::format("{} and {}", config.num_heads, config.num_kv_heads)});
  OCTAVO_ASSIGN(const auto head_dim, keys.integer("head_dim", 1, kMaxHeadDim));
  if (head_dim) {
    config.head_dim = *head_dim;
  } else if (!keys.present("head_dim") && model.head_dim > 0) {
    config.head_dim = model.head_dim;
  } else if (config.hidden_size % config.num_heads == 0) {
    config.head_dim = config.hidden_size / config.num_heads;
  } else {
    return fail({.what = "hidden_size is not a multiple of num_attention_heads, and there is no head_dim",
                 .where = keys.where(),
                 .found = fmt::format("{} and {}", config.hidden_size, config.num_heads)});
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim)
    return fail({.what = "head_dim cannot be rotated",
                 .where = keys.where(),
                 .found = fmt::format("{}", config.head_dim),
                 .expected = fmt::format("an even number up to {}", kMaxHeadDim)});
  OCTAVO_ASSIGN(const auto eps, keys.number("rms_norm_eps", 1e-30, 1.0));
  config.rms_norm_eps = static_cast<float>(eps.value_or(model.eps));
  return {};
}

Result<void> read_switches(const ConfigKeys& keys, const ModelClass& model, ModelConfig& config) {
  OCTAVO_ASSIGN(const auto activation, keys.text("hidden_act"));
  if (activation && *activation != "silu" && *activation != "swish")
    return fail(keys.bad("hidden_act", "silu (no other activation is supported)"));
  OCTAVO_ASSIGN(const auto attention_bias, keys.boolean("attention_bias"));
  OCTAVO_ASSIGN(const auto mlp_bias, keys.boolean("mlp_bias"));
  config.o_bias = model.bias_keys && attention_bias.value_or(false);
  config.qkv_bias = model.qkv_bias || config.o_bias;
  config.mlp_bias = model.mlp_bias_key && mlp_bias.value_or(false);
  config.qk_norm = model.qk_norm;
  return {};
}

// What octavo quantize --rotate leaves to the engine:
// "octavo_transforms": {"down_proj_input": {"type": "hadamard", "block": 512}}. Anything else in it is an error: a
// transform that is not applied makes the model's answers nonsense.
Result<void> read_transforms(const ConfigKeys& keys, ModelConfig& config) {
  constexpr std::string_view kKey = "octavo_transforms";
  const Json* transforms = keys.find(kKey);
  if (transforms == nullptr) return {};
  const Error bad = keys.bad(kKey,
                             "{\"down_proj_input\": {\"type\": \"hadamard\", \"block\": a power of two that divides "
                             "every intermediate size}}");
  if (!transforms->is_object() || transforms->size() != 1 || !transforms->contains("down_proj_input")) return fail(bad);
  const Json& down = (*transforms)["down_proj_input"];
  if (!down.is_object() || down.size() != 2 || !down.contains("block") || !down.contains("type") ||
      down["type"] != "hadamard")
    return fail(bad);
  OCTAVO_ASSIGN(const auto block,
                ConfigKeys(down, fmt::format("{}, {}", keys.where(), kKey)).integer("block", 1, kMaxSize));
  if (!block || (*block & (*block - 1)) != 0 || config.shared_intermediate() % *block != 0) return fail(bad);
  config.down_hadamard = *block;
  return {};
}

// config.sliding_window from sliding_window, use_sliding_window, max_window_layers and layer_types.
Result<void> read_windows(const ConfigKeys& keys, const ModelClass& model, ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.num_layers);
  config.sliding_window.assign(layers, 0);
  int64_t window = 0;
  if (model.sliding_window != 0) {
    OCTAVO_ASSIGN(const auto given, keys.integer("sliding_window", 1, kMaxSize));
    const bool none = keys.present("sliding_window") || model.sliding_window == kNoWindow;
    window = given.value_or(none ? 0 : model.sliding_window);
    OCTAVO_ASSIGN(const auto use, keys.boolean("use_sliding_window"));
    if (model.window_switch && !use.value_or(false)) window = 0;
  }
  OCTAVO_ASSIGN(const auto max_window_layers, keys.integer("max_window_layers", 0, kMaxSize));
  const Json* types = keys.find("layer_types");
  if (types == nullptr) {
    const int64_t first = model.window_layers ? max_window_layers.value_or(kMaxWindowLayers) : 0;
    for (size_t i = 0; i < layers; ++i)
      if (static_cast<int64_t>(i) >= first) config.sliding_window[i] = window;
    return {};
  }
  if (!types->is_array() || types->size() != layers)
    return fail(keys.bad("layer_types", fmt::format("a list of {} layer types", layers)));
  for (size_t i = 0; i < layers; ++i) {
    const Json& type = (*types)[i];
    const bool sliding = type == "sliding_attention";
    if (!sliding && type != "full_attention")
      return fail(keys.bad("layer_types", "full_attention or sliding_attention for each layer"));
    if (!sliding) continue;
    const bool switched_off = model.window_switch && window == 0 && keys.present("use_sliding_window");
    if (!model.layer_types || (window == 0 && !switched_off))
      return fail({.what = "a layer slides, but there is no window for it",
                   .where = fmt::format("{}, layer_types, layer {}", keys.where(), i),
                   .expected = "sliding_window (and use_sliding_window true for Qwen models)"});
    config.sliding_window[i] = window;
  }
  return {};
}

Result<void> read_tokens(const ConfigKeys& keys, const ModelClass& model, ModelConfig& config) {
  const auto one = [&](std::string_view key, std::optional<int64_t> fallback) -> Result<std::optional<int64_t>> {
    if (!keys.present(key)) return fallback;
    OCTAVO_ASSIGN(const auto ids, keys.token_ids(key));
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };
  OCTAVO_ASSIGN(config.bos_token_id, one("bos_token_id", model.bos));
  OCTAVO_ASSIGN(config.pad_token_id, one("pad_token_id", std::nullopt));
  OCTAVO_ASSIGN(config.eos_token_ids, keys.token_ids("eos_token_id"));
  if (!keys.present("eos_token_id") && model.eos) config.eos_token_ids = {*model.eos};
  return {};
}

// The object that describes the language model: the root, or text_config where the root has no hidden_size.
const Json& text_model(const Json& root) {
  const auto nested = root.find("text_config");
  const bool descend = nested != root.end() && nested->is_object() && !root.contains("hidden_size");
  return descend ? *nested : root;
}

Result<bool> read_tied(const Json& root, const ConfigKeys& keys) {
  OCTAVO_ASSIGN(const auto own, keys.boolean("tie_word_embeddings"));
  if (own) return *own;
  for (const Json* other : {&root, root.contains("text_config") ? &root["text_config"] : nullptr}) {
    if (other == nullptr || !other->is_object()) continue;
    OCTAVO_ASSIGN(const auto tied, ConfigKeys(*other, keys.where()).boolean("tie_word_embeddings"));
    if (tied) return *tied;
  }
  return false;
}

}  // namespace

const std::vector<std::string>& supported_model_types() {
  static const std::vector<std::string> types = [] {
    std::vector<std::string> names;
    for (const ModelClass& row : kClasses) names.emplace_back(row.type);
    return names;
  }();
  return types;
}

Result<ModelConfig> parse_model_config(std::string_view json, std::string_view where) {
  OCTAVO_ASSIGN(const Json root, parse_config_json(json, where));
  if (!root.is_object()) return fail({.what = "config is not a JSON object", .where = std::string(where)});
  const Json& object = text_model(root);
  const ConfigKeys keys(object, &object == &root ? std::string(where) : fmt::format("{}, text_config", where));
  OCTAVO_ASSIGN(auto type, keys.text("model_type"));
  if (!type) {
    OCTAVO_ASSIGN(type, ConfigKeys(root, std::string(where)).text("model_type"));
  }
  OCTAVO_ASSIGN(const ModelClass* model, find_class(keys, type));
  ModelConfig config;
  config.model_type = model->type;
  OCTAVO_ASSIGN(config.architecture, read_architecture(keys, *model));
  OCTAVO_TRY(read_sizes(keys, *model, config));
  OCTAVO_ASSIGN(config.experts, read_experts(keys, config));
  OCTAVO_TRY(read_switches(keys, *model, config));
  OCTAVO_TRY(read_transforms(keys, config));
  OCTAVO_TRY(read_windows(keys, *model, config));
  OCTAVO_TRY(read_tokens(keys, *model, config));
  OCTAVO_ASSIGN(config.tied_embeddings, read_tied(root, keys));
  OCTAVO_ASSIGN(config.rope, read_rope(keys, {config.max_position, model->theta}));
  return config;
}

ModelShape ModelConfig::shape() const {
  return {architecture, num_layers, hidden_size, intermediate_size, vocab_size};
}

Result<PrecisionPlan> make_plan(const ModelConfig& config, const PlanRequest& request) {
  const auto layers = static_cast<int>(config.num_layers);
  if (request.file == nullptr) return make_plan(config.linear_modules(), layers, request);
  const bool schemed = !request.scheme.empty() && request.scheme != "auto";
  if (schemed || !request.ignore.empty() || !request.overrides.empty())
    return fail({.what = "a plan file decides the format of every module",
                 .where = request.file->path.string(),
                 .found = schemed ? fmt::format("a scheme, {}, beside it", request.scheme) : "rules beside it",
                 .remedy = "leave out the scheme, --ignore and --override, or the plan"});
  OCTAVO_ASSIGN(PrecisionPlan plan, make_plan(config.linear_modules(), config.shape(), *request.file));
  OCTAVO_TRY(apply_kv_request(plan, request));
  return plan;
}

int64_t ModelConfig::widest_intermediate() const {
  return experts ? std::max(intermediate_size, experts->intermediate_size) : intermediate_size;
}

int64_t ModelConfig::shared_intermediate() const {
  return experts ? std::gcd(intermediate_size, experts->intermediate_size) : intermediate_size;
}

std::vector<LinearModule> ModelConfig::linear_modules() const {
  std::vector<LinearModule> modules;
  for (int layer = 0; layer < static_cast<int>(num_layers); ++layer) {
    const auto add = [&](std::string_view part, Role role, int64_t rows, int64_t cols) {
      modules.push_back({fmt::format("model.layers.{}.{}", layer, part), role, layer, rows, cols});
    };
    add("self_attn.q_proj", Role::kQ, q_size(), hidden_size);
    add("self_attn.k_proj", Role::kK, kv_size(), hidden_size);
    add("self_attn.v_proj", Role::kV, kv_size(), hidden_size);
    add("self_attn.o_proj", Role::kO, hidden_size, q_size());
    if (!has_experts(layer)) {
      add("mlp.gate_proj", Role::kGate, intermediate_size, hidden_size);
      add("mlp.up_proj", Role::kUp, intermediate_size, hidden_size);
      add("mlp.down_proj", Role::kDown, hidden_size, intermediate_size);
      continue;
    }
    const ExpertNames& names = expert_names(model_type);
    add(names.router, Role::kRouter, experts->count, hidden_size);
    for (int expert = 0; expert < static_cast<int>(experts->count); ++expert) {
      const auto add_expert = [&](std::string_view part, Role role, int64_t rows, int64_t cols) {
        add(fmt::format("{}.{}.{}", names.experts, expert, part), role, rows, cols);
        modules.back().expert = expert;
      };
      add_expert(names.gate, Role::kGate, experts->intermediate_size, hidden_size);
      add_expert(names.up, Role::kUp, experts->intermediate_size, hidden_size);
      add_expert(names.down, Role::kDown, hidden_size, experts->intermediate_size);
    }
  }
  modules.push_back({"lm_head", Role::kHead, -1, vocab_size, hidden_size});
  return modules;
}

}  // namespace octavo
