// Every architecture against transformers in FP32: logits, hidden states, and greedy tokens through the cache.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/generate.h"
#include "engine/sequence.h"
#include "support/golden.h"

namespace octavo {
namespace {

constexpr double kBound = 1e-3;

class TinyGoldens : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return test_data(std::string("tiny/") + GetParam()); }
  std::unique_ptr<Model> load(Isa isa) const {
    ModelOptions options{.text = false};
    options.plan.scheme = "float32";
    options.threads = 2;
    options.isa = isa;
    auto model = Model::load(folder(), options);
    if (!model) {
      ADD_FAILURE() << model.error().message();
      return nullptr;
    }
    return std::move(*model);
  }
};

TEST_P(TinyGoldens, LogitsAndHiddenStatesAgree) {
  const Golden golden(folder() + "/golden.safetensors");
  const std::unique_ptr<Model> model = load(Isa::kReference);
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> ids = golden.ints("input_ids");
  const std::vector<float> logits = golden.floats("logits");
  const std::vector<int32_t> positions = golden.ints("hidden_positions");
  const auto vocab = static_cast<size_t>(model->config().vocab_size),
             size = static_cast<size_t>(model->config().hidden_size);

  PagePool kv = model->make_kv_cache(static_cast<int64_t>(ids.size()));
  Sequence sequence(*model, kv);
  std::vector<std::vector<float>> hidden(static_cast<size_t>(model->config().num_layers) + 1);
  const auto hook = [&](int64_t i, const float* rows, int64_t stride) {
    for (const int32_t position : positions)
      hidden[static_cast<size_t>(i)].insert(hidden[static_cast<size_t>(i)].end(), rows + position * stride,
                                            rows + position * stride + static_cast<int64_t>(size));
  };
  double worst = 0;
  const auto fed = sequence.feed_all_logits(
      ids,
      [&](int64_t first, const float* rows, int64_t count, int64_t stride) {
        for (int64_t i = 0; i < count; ++i)
          worst =
              std::max(worst, relative_error({rows + i * stride, vocab},
                                             std::span(logits).subspan(static_cast<size_t>(first + i) * vocab, vocab)));
      },
      static_cast<int64_t>(ids.size()), hook);
  ASSERT_TRUE(fed.has_value()) << fed.error().message();
  EXPECT_LT(worst, kBound) << "logits";
  for (size_t i = 0; i < hidden.size(); ++i) {
    const std::vector<float> expected = golden.floats("hidden." + std::to_string(i));
    for (size_t p = 0; p < positions.size(); ++p)
      EXPECT_LT(
          relative_error(std::span(hidden[i]).subspan(p * size, size), std::span(expected).subspan(p * size, size)),
          kBound)
          << "hidden." << i << " at position " << positions[p];
  }
}

TEST_P(TinyGoldens, GreedyThroughTheCacheAgrees) {
  const Golden golden(folder() + "/golden.safetensors");
  const std::unique_ptr<Model> model = load(Isa::kReference);
  ASSERT_NE(model, nullptr);
  std::vector<int32_t> ids = golden.ints("input_ids");
  const std::vector<int32_t> expected = golden.ints("greedy_ids");
  const std::vector<float> margins = golden.floats("greedy_margin");
  PagePool kv = model->make_kv_cache(static_cast<int64_t>(ids.size() + expected.size()));
  Sequence sequence(*model, kv);
  ASSERT_TRUE(sequence.feed(ids).has_value());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto logits = sequence.logits();
    const float largest = std::fabs(
        *std::max_element(logits.begin(), logits.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    if (margins[i] > kBound * largest) {
      EXPECT_EQ(argmax(logits), expected[i]) << "step " << i;
    }
    if (sequence.length() >= model->config().max_position) break;
    ASSERT_TRUE(sequence.feed({&expected[i], 1}).has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TinyGoldens,
                         testing::Values("llama_tied", "llama_untied_hd64", "llama_attention_bias", "llama_rope_linear",
                                         "llama_rope_dynamic", "llama_rope_llama3", "llama_rope_yarn",
                                         "mistral_sliding", "mixtral", "qwen2_bias", "qwen3_moe", "qwen3_qk_norm",
                                         "qwen3_yarn"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace octavo
