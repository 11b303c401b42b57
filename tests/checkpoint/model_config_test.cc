// config.json -> ModelConfig: both spellings, defaults of every class, and refusals that name the key.
#include "checkpoint/model_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/container_support.h"

namespace octavo {
namespace {

ModelConfig parse(const std::string& json) {
  const auto config = parse_model_config(json, "config.json");
  EXPECT_TRUE(config) << json << "\n" << (config ? "" : config.error().message());
  return config ? *config : ModelConfig{};
}

void expect_refused(const std::string& json, const std::string& reason) {
  const auto config = parse_model_config(json, "config.json");
  ASSERT_FALSE(config) << "accepted: " << json;
  const std::string message = config.error().message();
  EXPECT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_NE(message.find("config.json"), std::string::npos) << message;
}

std::string with(const std::string& keys, const std::string& type = "llama") {
  return R"({"model_type":")" + type +
         R"(","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":3)" +
         (keys.empty() ? "" : "," + keys) + "}";
}

TEST(ModelConfig, BothSpellingsOfEveryModelParseToTheSame) {
  for (const char* name : kTinyModels) {
    SCOPED_TRACE(name);
    const auto folder = kTestData / "tiny" / name;
    const ModelConfig old_spelling = parse(*read_text_file(folder / "config.json"));
    const ModelConfig new_spelling = parse(*read_text_file(folder / "config_v5.json"));
    EXPECT_EQ(old_spelling, new_spelling);
    EXPECT_EQ(old_spelling.hidden_size % 32, 0);
  }
}

// Attention sinks, latent attention: what this attention does not compute is not run without it.
TEST(ModelConfig, OtherKindsOfAttentionAreRefusedByTheirModelType) {
  for (const char* type : {"gpt_oss", "deepseek_v2", "deepseek_v3"})
    expect_refused(with("", type),
                   fmt::format("model type is not supported\n  where:    config.json\n  found:    {}\n", type));
}

TEST(ModelConfig, WhatIsWrittenParsesBackToTheSame) {
  for (const char* name : kTinyModels) {
    SCOPED_TRACE(name);
    const ModelConfig config = parse(*read_text_file(kTestData / "tiny" / name / "config.json"));
    EXPECT_EQ(parse(write_model_config(config)), config);
  }
  for (const char* keys :
       {R"("eos_token_id":[1,2,3],"bos_token_id":null)",
        R"("eos_token_id":null,"rms_norm_eps":1e-5,"rope_theta":1000000)",
        R"("rope_scaling":{"rope_type":"yarn","factor":8,"truncate":false,"attention_factor":1.5,"beta_fast":16})"}) {
    const ModelConfig config = parse(with(keys));
    EXPECT_EQ(parse(write_model_config(config)), config) << keys;
  }
  const ModelConfig sliding =
      parse(with(R"("use_sliding_window":true,"sliding_window":16,"max_window_layers":1)", "qwen2"));
  EXPECT_EQ(sliding.sliding_window, (std::vector<int64_t>{0, 16, 16}));
  EXPECT_EQ(parse(write_model_config(sliding)), sliding);
}

TEST(ModelConfig, ValuesOfATinyModel) {
  const ModelConfig config = parse(*read_text_file(kTestData / "tiny" / "qwen3_yarn" / "config.json"));
  EXPECT_EQ(config.model_type, "qwen3");
  EXPECT_EQ(config.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config.vocab_size, 320);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.rope.type, RopeType::kYarn);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.factor, 4);
  EXPECT_EQ(config.rope.original_max_position, 64);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(config.sliding_window, (std::vector<int64_t>{0, 0, 0}));
}

TEST(ModelConfig, DefaultsOfEachClass) {
  const ModelConfig llama = parse(R"({"model_type":"llama"})");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.max_position, 2048);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6f);
  EXPECT_EQ(llama.rope.theta, 1e4);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_ids, std::vector<int64_t>{2});
  const ModelConfig mistral = parse(R"({"model_type":"mistral"})");
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.sliding_window, std::vector<int64_t>(32, 4096));
  const ModelConfig qwen2 = parse(R"({"model_type":"qwen2"})");
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias);
  EXPECT_FALSE(qwen2.bos_token_id);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_EQ(qwen2.sliding_window, std::vector<int64_t>(32, 0));
  const ModelConfig qwen3 =
      parse(R"({"model_type":"qwen3","hidden_size":1024,"num_attention_heads":16,"num_key_value_heads":8})");
  EXPECT_EQ(qwen3.head_dim, 128);  // not 1024 / 16
  EXPECT_TRUE(qwen3.qk_norm);
}

TEST(ModelConfig, HeadDimNullOrGiven) {
  EXPECT_EQ(parse(with(R"("head_dim":null)")).head_dim, 16);
  EXPECT_EQ(parse(with(R"("head_dim":null)", "qwen3")).head_dim, 16);
  EXPECT_EQ(parse(with(R"("head_dim":24)")).head_dim, 24);
  EXPECT_EQ(parse(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":null})")
                .num_kv_heads,
            4);
}

TEST(ModelConfig, Biases) {
  const ModelConfig llama = parse(with(R"("attention_bias":true,"mlp_bias":true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  const ModelConfig qwen2 = parse(with(R"("attention_bias":false)", "qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias);
  const ModelConfig qwen3 = parse(with(R"("attention_bias":true)", "qwen3"));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && !qwen3.mlp_bias);
}

// A transform that is not applied makes every answer nonsense: what is not understood is refused.
TEST(ModelConfig, OnlineTransforms) {
  const auto key = [](const std::string& value) {
    return with(R"("intermediate_size":192,"octavo_transforms":)" + value);
  };
  EXPECT_EQ(parse(with("")).down_hadamard, 0);
  EXPECT_EQ(parse(key(R"({"down_proj_input":{"type":"hadamard","block":64}})")).down_hadamard, 64);
  for (const char* value :
       {R"({})", R"([])", R"({"down_proj_input":{"type":"hadamard"}})", R"({"down_proj_input":{"block":64}})",
        R"({"down_proj_input":{"type":"fourier","block":64}})", R"({"down_proj_input":{"type":"hadamard","block":48}})",
        R"({"down_proj_input":{"type":"hadamard","block":128}})",
        R"({"down_proj_input":{"type":"hadamard","block":0}})",
        R"({"down_proj_input":{"type":"hadamard","block":"64"}})",
        R"({"down_proj_input":{"type":"hadamard","block":64,"seed":1}})",
        R"({"down_proj_input":{"type":"hadamard","block":64},"o_proj_input":{"type":"hadamard","block":64}})"})
    expect_refused(key(value), "octavo_transforms");
}

TEST(ModelConfig, SlidingWindows) {
  const auto windows = [](const std::string& keys, const std::string& type) {
    return parse(with(keys, type)).sliding_window;
  };
  using V = std::vector<int64_t>;
  EXPECT_EQ(windows(R"("sliding_window":16)", "mistral"), (V{16, 16, 16}));
  EXPECT_EQ(windows(R"("sliding_window":null)", "mistral"), (V{0, 0, 0}));
  EXPECT_EQ(windows(R"("sliding_window":16)", "llama"), (V{0, 0, 0}));
  EXPECT_EQ(windows(R"("sliding_window":16)", "qwen2"), (V{0, 0, 0}));
  EXPECT_EQ(windows(R"("sliding_window":16,"use_sliding_window":true)", "qwen2"), (V{0, 0, 0}));  // from layer 28 on
  EXPECT_EQ(windows(R"("sliding_window":16,"use_sliding_window":true,"max_window_layers":2)", "qwen3"), (V{0, 0, 16}));
  const std::string types = R"("layer_types":["sliding_attention","full_attention","sliding_attention"])";
  EXPECT_EQ(windows(R"("sliding_window":16,"use_sliding_window":true,)" + types, "qwen3"), (V{16, 0, 16}));
  EXPECT_EQ(windows(R"("sliding_window":16,"use_sliding_window":false,)" + types, "qwen3"), (V{0, 0, 0}));
  EXPECT_EQ(windows(R"("sliding_window":16,)" + types, "mistral"), (V{16, 0, 16}));
  expect_refused(with(types), "no window");
  expect_refused(with(R"("layer_types":["full_attention"])", "qwen2"), "layer_types");
  expect_refused(with(R"("layer_types":["full_attention","chunked_attention","full_attention"])", "qwen2"),
                 "layer_types");
  expect_refused(with(R"("sliding_window":-1)", "mistral"), "sliding_window");
}

TEST(ModelConfig, NestedTextConfig) {
  const ModelConfig config = parse(
      R"({"model_type":"llava","architectures":["LlavaForConditionalGeneration"],"text_config":)"
      R"({"model_type":"mistral","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"tie_word_embeddings":true}})");
  EXPECT_EQ(config.model_type, "mistral");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_TRUE(parse(with(R"("text_config":{"tie_word_embeddings":true})")).tied_embeddings);
  EXPECT_FALSE(
      parse(with(R"("tie_word_embeddings":false,"text_config":{"tie_word_embeddings":true})")).tied_embeddings);
  expect_refused(R"({"model_type":"llava","text_config":{"hidden_size":64}})", "llava");
}

TEST(ModelConfig, TokenIds) {
  EXPECT_EQ(parse(with(R"("eos_token_id":[128001,128008,128009])")).eos_token_ids,
            (std::vector<int64_t>{128001, 128008, 128009}));
  EXPECT_TRUE(parse(with(R"("eos_token_id":null)")).eos_token_ids.empty());
  EXPECT_FALSE(parse(with(R"("bos_token_id":null,"pad_token_id":-1)")).bos_token_id);
  EXPECT_FALSE(parse(with(R"("pad_token_id":-1)")).pad_token_id);
  expect_refused(with(R"("eos_token_id":"</s>")"), "eos_token_id");
  expect_refused(with(R"("eos_token_id":[1,1.5])"), "eos_token_id");
  expect_refused(with(R"("bos_token_id":4294967296)"), "bos_token_id");
}

TEST(ModelConfig, UnsupportedModelsAreNamedWithTheSupportedOnes) {
  expect_refused(R"({"model_type":"gemma3_text","hidden_size":64})", "gemma3_text");
  expect_refused(R"({"model_type":"gemma3_text"})", "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe");
  expect_refused(R"({"hidden_size":64})", "model_type");
  expect_refused(with(R"("architectures":["LlamaForSequenceClassification"])"), "architectures");
  expect_refused(with(R"("hidden_act":"gelu")"), "hidden_act");
  EXPECT_EQ(supported_model_types(),
            (std::vector<std::string>{"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}));
}

TEST(ModelConfig, Experts) {
  const ModelConfig mixtral = parse(R"({"model_type":"mixtral"})");
  EXPECT_EQ(mixtral.experts, (ExpertsConfig{.count = 8,
                                            .per_token = 2,
                                            .intermediate_size = 14336,
                                            .normalize = true,
                                            .layers = std::vector<bool>(32, true)}));
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5f);
  EXPECT_EQ(mixtral.rope.theta, 1e6);
  EXPECT_EQ(mixtral.sliding_window, std::vector<int64_t>(32, 0));
  EXPECT_EQ(parse(with(R"("sliding_window":512)", "mixtral")).sliding_window, std::vector<int64_t>(3, 512));
  const ModelConfig qwen = parse(R"({"model_type":"qwen3_moe"})");
  EXPECT_EQ(qwen.experts, (ExpertsConfig{.count = 128,
                                         .per_token = 8,
                                         .intermediate_size = 768,
                                         .normalize = false,
                                         .layers = std::vector<bool>(24, true)}));
  EXPECT_EQ(parse(with(R"("num_local_experts":4,"num_experts_per_tok":3)", "qwen3_moe")).experts->count, 4);
  EXPECT_TRUE(parse(with(R"("norm_topk_prob":true)", "qwen3_moe")).experts->normalize);
  EXPECT_EQ(parse(with(R"("decoder_sparse_step":2)", "qwen3_moe")).experts->layers,
            (std::vector<bool>{false, true, false}));
  EXPECT_EQ(parse(with(R"("mlp_only_layers":[0,2])", "qwen3_moe")).experts->layers,
            (std::vector<bool>{false, true, false}));
  // Without a layer or an expert it is a dense model.
  for (const char* dense : {R"("num_experts":0)", R"("mlp_only_layers":[0,1,2])", R"("decoder_sparse_step":4)"})
    for (const char* type : {"qwen3_moe", "mixtral"}) {
      const ModelConfig config = parse(with(dense, type));
      EXPECT_EQ(config.experts.has_value(), type == std::string("mixtral") && dense[1] != 'n') << dense;
      EXPECT_EQ(parse(write_model_config(config)), config) << dense;
    }
  EXPECT_FALSE(parse(with(R"("num_experts":8)")).experts);
  expect_refused(with(R"("num_experts":4,"num_experts_per_tok":5)", "qwen3_moe"), "num_experts_per_tok");
  expect_refused(with(R"("num_experts_per_tok":0)", "mixtral"), "num_experts_per_tok");
  expect_refused(with(R"("num_local_experts":-1)", "mixtral"), "num_local_experts");
  expect_refused(R"({"model_type":"mixtral","num_hidden_layers":4096,"num_local_experts":33})", "num_local_experts");
  expect_refused(with(R"("mlp_only_layers":[3])", "qwen3_moe"), "a list of layers below 3");
  expect_refused(with(R"("mlp_only_layers":3)", "qwen3_moe"), "mlp_only_layers");
  expect_refused(with(R"("decoder_sparse_step":0)", "qwen3_moe"), "decoder_sparse_step");
  expect_refused(with(R"("moe_intermediate_size":0)", "qwen3_moe"), "moe_intermediate_size");
}

// A scheme lowers experts, each by its own name and all by their role; a router only where a rule names it.
TEST(ModelConfig, ExpertsAreModules) {
  const ModelConfig config = parse(
      with(R"("num_experts":2,"num_experts_per_tok":1,"moe_intermediate_size":32,"mlp_only_layers":[1])", "qwen3_moe"));
  std::vector<std::string> names;
  for (const LinearModule& module : config.linear_modules())
    if (module.layer == 2)
      names.push_back(fmt::format("{} {}x{} {}", module.name, module.rows, module.cols, module.expert));
  EXPECT_EQ(std::vector<std::string>(names.begin() + 4, names.end()),
            (std::vector<std::string>{
                "model.layers.2.mlp.gate 2x64 -1", "model.layers.2.mlp.experts.0.gate_proj 32x64 0",
                "model.layers.2.mlp.experts.0.up_proj 32x64 0", "model.layers.2.mlp.experts.0.down_proj 64x32 0",
                "model.layers.2.mlp.experts.1.gate_proj 32x64 1", "model.layers.2.mlp.experts.1.up_proj 32x64 1",
                "model.layers.2.mlp.experts.1.down_proj 64x32 1"}));
  const auto plan = make_plan(config, {.scheme = "fp8", .ignore = {"down_proj"}});
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan->linear("model.layers.0.mlp.gate").weight, plain_format(ElementType::kF32));
  EXPECT_EQ(plan->linear("model.layers.0.mlp.gate").activation, plain_format(ElementType::kF32));
  EXPECT_EQ(plan->linear("model.layers.0.mlp.experts.1.up_proj").weight.element, ElementType::kE4m3);
  EXPECT_EQ(plan->linear("model.layers.0.mlp.experts.1.down_proj").weight, plain_format(ElementType::kBf16));
  const auto named = make_plan(config, {.scheme = "fp8", .ignore = {}, .overrides = {{"router", "fp8"}}});
  ASSERT_TRUE(named) << named.error().message();
  EXPECT_EQ(named->linear("model.layers.0.mlp.gate").weight.element, ElementType::kE4m3);
}

TEST(ModelConfig, NumbersOutOfRange) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "max_position_embeddings", "head_dim"})
    for (const char* value :
         {"0", "-1", "1e300", "1.5", "\"8\"", "true", "[8]", "9223372036854775808", "18446744073709551615"})
      expect_refused(R"({"model_type":"llama",")" + std::string(key) + "\":" + value + "}", key);
  for (const char* value : {"0", "-1e-5", "2", "\"x\"", "1e999"})
    expect_refused(with(R"("rms_norm_eps":)" + std::string(value)), value[0] == '1' ? "JSON" : "rms_norm_eps");
  expect_refused(with(R"("num_hidden_layers":3)"), "twice");
  expect_refused(R"({"model_type":"llama","num_hidden_layers":1000000})", "num_hidden_layers");
  expect_refused(R"({"model_type":"llama","num_attention_heads":6,"num_key_value_heads":4,"hidden_size":96})",
                 "multiple");
  expect_refused(R"({"model_type":"llama","num_attention_heads":6,"hidden_size":64})", "multiple");
  expect_refused(with(R"("head_dim":15)"), "even");
}

TEST(ModelConfig, NotAConfig) {
  expect_refused("", "JSON");
  expect_refused("[]", "not a JSON object");
  expect_refused(std::string(100000, '['), "nested");
  expect_refused(R"({"model_type":7})", "model_type");
  std::string many = R"({"model_type":"llama")";
  for (int i = 0; i < 200000; ++i) many += ",\"" + std::to_string(i) + "\":0";
  expect_refused(many + "}", "too many keys");  // at once, not after minutes
}

TEST(GenerationConfig, Values) {
  const auto config = parse_generation_config(
      R"({"eos_token_id":[2,3],"bos_token_id":1,"temperature":0.6,"top_p":0.9,"top_k":20,"do_sample":true,"max_new_tokens":64,"transformers_version":"4"})",
      "generation_config.json");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->eos_token_ids, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->temperature, 0.6f);
  EXPECT_EQ(config->top_p, 0.9f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->max_new_tokens, 64);
  EXPECT_TRUE(config->do_sample);
  EXPECT_FALSE(config->min_p);
  EXPECT_FALSE(parse_generation_config(R"({"temperature":-1})", "g"));
  EXPECT_FALSE(parse_generation_config(R"({"top_p":1.5})", "g"));
  EXPECT_FALSE(parse_generation_config(R"([])", "g"));
}

}  // namespace
}  // namespace octavo
