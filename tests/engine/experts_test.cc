// A mixture of experts: few and no tokens for an expert, and the experts that a router picks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "engine/sequence.h"
#include "models/layers/decoder_layer.h"
#include "quantize/model_folder.h"

namespace octavo {
namespace {

float bf16_of(float value) {
  uint16_t bits = 0;
  store_element(ElementType::kBf16, &bits, 0, value);
  return load_element(ElementType::kBf16, &bits, 0);
}

// Logits of each token, the prompt fed in pieces of `chunk` tokens.
std::vector<float> logits_of(Model& model, const std::vector<TokenId>& prompt, int64_t chunk) {
  PagePool kv = model.make_kv_cache(std::ssize(prompt));
  Sequence sequence(model, kv);
  std::vector<float> logits;
  const auto keep = [&](int64_t, const float* rows, int64_t count, int64_t stride) {
    for (int64_t i = 0; i < count; ++i)
      logits.insert(logits.end(), rows + i * stride, rows + i * stride + model.config().vocab_size);
  };
  EXPECT_TRUE(sequence.feed_all_logits(prompt, keep, chunk).has_value());
  return logits;
}

// The last layer's router gives experts 3, 4 and 5 scores of their own and zeros to the others; in the first, expert 23
// has a score only in the direction of token 95's embedding.
Change uneven() {
  return [](const std::string& name, std::vector<float>& values, const Shape& shape) {
    if (name == "model.layers.2.mlp.gate.weight")
      for (size_t i = 0; i < values.size(); ++i)
        if (const auto expert = static_cast<int64_t>(i) / shape[1]; expert < 3 || expert > 5) values[i] = 0;
    if (name == "model.embed_tokens.weight") values[static_cast<size_t>(95 * shape[1] + 7)] = 100;
    if (name == "model.layers.0.mlp.gate.weight")
      for (int64_t c = 0; c < shape[1]; ++c) values[static_cast<size_t>(23 * shape[1] + c)] = c == 7 ? 30.0f : 0.0f;
  };
}

class Experts : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Model> load(Isa isa, int threads) {
    if (!std::filesystem::exists(folder_ / "model"))
      write_model(folder_ / "model", kExpertModel, ElementType::kBf16, uneven());
    ModelOptions options{.text = false};
    options.plan.scheme = GetParam();
    options.threads = threads;
    options.isa = isa;
    auto model = Model::load(folder_ / "model", options);
    if (!model) ADD_FAILURE() << model.error().message();
    return model ? std::move(*model) : nullptr;
  }
  TestFolder folder_;
};

// Prompts of any length, token 95 once: whatever is fed together, the bits are those of one token at a time.
TEST_P(Experts, ManyFewAndNoTokensForAnExpert) {
  const std::unique_ptr<Model> model = load(best_isa(), 2);
  ASSERT_NE(model, nullptr);
  Random random(5);
  for (const int64_t length : {1, 2, 3, 5, 7, 9, 31, 32, 33, 40}) {
    std::vector<TokenId> prompt(static_cast<size_t>(length));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random.below(95));
    prompt[static_cast<size_t>(length / 2)] = 95;
    const std::vector<float> alone = logits_of(*model, prompt, 1);
    for (const float value : alone) ASSERT_TRUE(std::isfinite(value));
    for (const int64_t chunk : {int64_t{3}, int64_t{7}, length}) {
      const std::vector<float> together = logits_of(*model, prompt, chunk);
      ASSERT_EQ(alone.size(), together.size());
      EXPECT_EQ(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)), 0)
          << length << " tokens in pieces of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Experts, testing::Values("bf16", "fp8", "fp8-block", "int8", "int4-g32", "nvfp4"),
                         [](const auto& instance) {
                           std::string text = instance.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

// Experts whose scores lie close together, against the router's product in double precision.
TEST(Router, PicksTheExpertsOfExactArithmetic) {
  TestFolder folder;
  std::vector<float> router;  // as the checkpoint stores it
  write_model(folder / "model", kExpertModel, ElementType::kBf16,
              [&](const std::string& name, std::vector<float>& values, const Shape& shape) {
                if (name != "model.layers.0.mlp.gate.weight") return;
                const auto hidden = static_cast<size_t>(shape[1]);
                for (size_t i = hidden; i < values.size(); ++i)  // all like the first, but for one in sixty-four
                  if (i % 64 != 5) values[i] = values[i % hidden];
                for (const float value : values) router.push_back(bf16_of(value));
              });
  const Checkpoint checkpoint = open_model(folder / "model");
  const ModelConfig& c = checkpoint.config();
  const auto hidden = static_cast<size_t>(c.hidden_size), count = static_cast<size_t>(c.experts->count);
  const auto plan = make_plan(c, {.scheme = "fp8"});
  ASSERT_TRUE(plan.has_value());
  ThreadPool pool(2);
  LoadReport report;
  const LayerLoader loader(checkpoint, *plan, best_isa(), pool, report);
  auto layer = loader.load(0);
  ASSERT_TRUE(layer.has_value()) << layer.error().message();

  constexpr int64_t kRows = 1000;
  std::vector<float> x(static_cast<size_t>(kRows) * hidden);
  Random random(9);
  for (float& value : x) value = random.normal();
  LayerRunner runner(c, best_isa());
  runner.route(*layer, {.x = x.data(), .rows = kRows, .sequences = {}}, pool);
  std::vector<std::vector<size_t>> found(static_cast<size_t>(kRows));
  for (size_t e = 0; e < count; ++e)
    for (const auto [row, weight] : runner.routing().rows_of(static_cast<int64_t>(e)))
      found[static_cast<size_t>(row)].push_back(e);

  const auto k = static_cast<size_t>(c.experts->per_token);
  // The experts of a row by exact scores, or by those rounded to BF16; ascending. Exact ones are none where the last
  // and the first that is left out are as good as equal.
  const auto exact = [&](const float* row, bool bf16) {
    double squares = 0;
    for (size_t i = 0; i < hidden; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(c.rms_norm_eps));
    std::vector<std::pair<double, size_t>> scores;
    for (size_t e = 0; e < count; ++e) {
      double score = 0;
      for (size_t i = 0; i < hidden; ++i) score += row[i] * scale * router[e * hidden + i];
      scores.emplace_back(bf16 ? -bf16_of(static_cast<float>(score)) : -score, e);
    }
    std::sort(scores.begin(), scores.end());
    std::vector<size_t> experts;
    if (!bf16 && scores[k].first - scores[k - 1].first < 1e-6) return experts;
    for (size_t j = 0; j < k; ++j) experts.push_back(scores[j].second);
    std::sort(experts.begin(), experts.end());
    return experts;
  };
  int wrong = 0, wrong_in_bf16 = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = x.data() + r * c.hidden_size;
    const std::vector<size_t> wanted = exact(row, false);
    if (wanted.empty()) continue;
    wrong += wanted != found[static_cast<size_t>(r)] ? 1 : 0;
    wrong_in_bf16 += wanted != exact(row, true) ? 1 : 0;
  }
  EXPECT_LE(wrong, 1);
  EXPECT_GT(wrong_in_bf16, 20);  // what scores in BF16 would do
}

}  // namespace
}  // namespace octavo
