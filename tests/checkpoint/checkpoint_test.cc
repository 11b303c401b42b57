// Checkpoint: opening folders, shape checks, accounting of every tensor, tied heads.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>


namespace octavo {
namespace {

const std::filesystem::path kTiny = std::filesystem::path(OCTAVO_TEST_DATA) / "tiny";
constexpr const char* kDense[] = {"llama_attention_bias", "llama_rope_dynamic", "llama_rope_linear", "llama_rope_llama3",
                                  "llama_rope_yarn",      "llama_tied",         "llama_untied_hd64", "mistral_sliding",
                                  "qwen2_bias",           "qwen3_qk_norm",      "qwen3_yarn"};

// Takes everything a decoder takes.
void use_all(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  for (const LinearModule& module : config.linear_modules()) {
    const auto linear = checkpoint.linear(module.name);
    ASSERT_TRUE(linear) << linear.error().message();
    EXPECT_EQ(linear->rows, module.rows);
    EXPECT_EQ(linear->cols, module.cols);
  }
  const auto wide = [&](const std::string& name, const Shape& shape) {
    const auto values = checkpoint.wide(name, shape);
    ASSERT_TRUE(values) << values.error().message();
  };
  ASSERT_TRUE(checkpoint.entry("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}));
  wide("model.norm.weight", {config.hidden_size});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    wide(layer + ".input_layernorm.weight", {config.hidden_size});
    wide(layer + ".post_attention_layernorm.weight", {config.hidden_size});
    if (config.qk_norm) {
      wide(layer + ".self_attn.q_norm.weight", {config.head_dim});
      wide(layer + ".self_attn.k_norm.weight", {config.head_dim});
    }
  }
}

TEST(Checkpoint, EveryTensorOfEveryDenseModelIsUsed) {
  for (const char* name : kDense) {
    SCOPED_TRACE(name);
    const auto checkpoint = Checkpoint::open(kTiny / name);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    EXPECT_EQ(checkpoint->dialect(), "none");
    EXPECT_FALSE(checkpoint->is_gguf());
    use_all(*checkpoint);
    const auto unused = checkpoint->unused();
    ASSERT_TRUE(unused) << unused.error().message();
    EXPECT_TRUE(unused->empty());
  }
}

}  // namespace
}  // namespace octavo
