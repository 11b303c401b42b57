// KV caches on models that have gone wrong elsewhere: keys with a large bias, tiny keys, long repetitions.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "engine/sequence.h"
#include "evaluate/compare.h"
#include "evaluate/kv_table.h"
#include "quantize/model_folder.h"
#include "quantize/quantize_checkpoint.h"
#include "support/byte_tokenizer_json.h"
#include "support/kv_calibration_file.h"

namespace octavo {
namespace {

constexpr std::string_view kBiasModel = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 320, "intermediate_size": 384,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "head_dim": 64,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2})";

class KvCases : public testing::Test {
 protected:
  // `k_bias` in channel 3 of each head, whose queries are small; keys and queries of the given size elsewhere.
  void make(float k_bias, float k_size) {
    write_model(folder_ / "model", kBiasModel, ElementType::kBf16,
                [=](const std::string& name, std::vector<float>& values, const Shape& shape) {
                  const bool k = name.find("k_proj") != std::string::npos, q = name.find("q_proj") != std::string::npos;
                  if (name == "lm_head.weight")
                    for (float& x : values) x *= 20;
                  if (name == "model.embed_tokens.weight")
                    for (float& x : values) x *= 20;
                  if (name.ends_with(".bias"))
                    for (size_t i = 0; i < values.size(); ++i) values[i] = k && i % 64 == 3 ? k_bias : 0.0f;
                  if (!(k || q) || shape.size() != 2) return;
                  const auto cols = static_cast<size_t>(shape[1]);
                  for (size_t i = 0; i < values.size(); ++i) {
                    const size_t channel = i / cols % 64;
                    if (k) values[i] *= k_size;
                    if (q) values[i] *= channel % 32 == 3 ? 1e-3f / k_size : 0.5f / k_size;
                  }
                });
    std::ofstream(folder_ / "model/tokenizer.json") << byte_tokenizer_json({}, 320, {1, 2});
    for (int i = 0; i < 900; ++i) text_ += static_cast<char>('a' + i * i * 31 % 26);
    std::ofstream calibration(folder_ / "calibration.txt");
    for (int i = 0; i < 300; ++i) calibration << "line " << i * i * 7919 << " of this text\n\n";
  }
  std::unique_ptr<Model> load(const std::string& name, const std::string& kv, const std::string& scheme = "") {
    ModelOptions options;
    options.plan.scheme = scheme;
    options.plan.kv_cache_dtype = kv;
    auto model = Model::load(folder_ / name, options);
    if (!model) throw std::runtime_error(model.error().message());
    return std::move(*model);
  }
  double same_top(const std::string& name, const std::string& kv) {
    const auto wide = load(name, "bf16"), lowered = load(name, kv);
    return compare(*wide, *lowered, text_, {.context = 257, .windows = 1}).value().same_top;
  }
  std::unique_ptr<Model> calibrated(const std::string& kv) {
    QuantizeOptions options{.plan = {.scheme = "bf16"}, .threads = 2};
    options.calibrate.emplace();
    options.calibrate->data = {.sources = {{folder_ / "calibration.txt", 1}}, .samples = 8, .length = 128, .seed = 3};
    options.calibrate->isa = best_isa();
    options.kv = KvCalibrateOptions{.kv = kv};
    const auto done = quantize_checkpoint(open_model(folder_ / "model"), folder_ / "calibrated", options);
    if (!done) throw std::runtime_error(done.error().message());
    return load("calibrated", "auto");
  }

  TestFolder folder_;
  std::string text_;
};

TEST_F(KvCases, LargeKeyBias) {
  make(900, 1);
  EXPECT_GE(same_top("model", "fp8_e4m3"), 0.95);
  const auto model = calibrated("int8:channel");
  EXPECT_EQ(kv_name(model->plan().kv[0]), "int8:channel/int8");
  EXPECT_GE(same_top("calibrated", "int8:channel"), 0.95);
  // A scale per token is 900 / 127 for all channels there.
  EXPECT_LT(same_top("calibrated", "int8:dynamic"), same_top("calibrated", "int8:channel"));
  const KvCalibration& values = *model->checkpoint().kv_calibration();
  for (size_t layer = 0; layer < values.layers.size(); ++layer)
    for (const float scale : values.scales(layer, true, row_format(ElementType::kE4m3), {}))
      EXPECT_NEAR(scale, 2, 0.2) << layer;
}

TEST_F(KvCases, TinyKeys) {
  make(0, 0.0005f);
  EXPECT_GE(same_top("model", "fp8_e4m3"), 0.95);
  calibrated("fp8_e4m3:static");
  EXPECT_GE(same_top("calibrated", "auto"), 0.95);
  EXPECT_GE(same_top("calibrated", "fp8_e4m3:block64"), 0.95);
}

// Scales that are too small clip: the count says so, and that it was none where they fit.
TEST_F(KvCases, ClippedKeysAndValuesAreCounted) {
  make(0, 1);
  const auto fits = calibrated("fp8_e4m3:static");
  KvCalibration calibration = *fits->checkpoint().kv_calibration();
  for (KvCalibration::Layer& layer : calibration.layers) {
    for (float& range : layer.k_range) range *= 2;
    for (float& range : layer.v_range) range /= 16;
  }
  const auto clipped_by = [&](const std::string& kv) {
    ModelOptions options;
    options.plan.kv_cache_dtype = kv;
    options.plan.kv_calibration = folder_ / "changed.json";
    const auto model = Model::load(folder_ / "calibrated", options);
    if (!model) throw std::runtime_error(model.error().message());
    EXPECT_TRUE(perplexity(**model, text_, {.context = 128, .windows = 1}).has_value());
    return (*model)->decoder().kv_clipped();
  };
  write_kv_calibration(folder_ / "changed.json", calibration, fits->config());
  const auto heads = static_cast<uint64_t>(fits->config().num_layers * fits->config().num_kv_heads);
  const Decoder::KvClipped stored = clipped_by("fp8_e4m3:static"), wide = clipped_by("fp8_e4m3:static:wide32");
  EXPECT_EQ(stored.k, 0u);
  EXPECT_EQ(stored.v, 128 * heads);
  EXPECT_EQ(wide.v, 96 * heads);
  EXPECT_EQ(clipped_by("fp8_e4m3:dynamic").v, 0u);
  EXPECT_EQ(clipped_by("bf16").v, 0u);
}

// Queries so large that a broken calibration's channel scales take them past FP32: the other formats are still
// measured.
TEST_F(KvCases, ARowThatIsNotFiniteDoesNotEndTheTable) {
  make(0, 1e-6f);
  const auto model = calibrated("int8:channel");
  KvCalibration broken = *model->checkpoint().kv_calibration();
  for (size_t i = 0; i < broken.layers[0].k_min.size(); ++i) {
    broken.layers[0].k_min[i] = -3e38f;
    broken.layers[0].k_max[i] = 3e38f;
  }
  write_kv_calibration(folder_ / "broken.json", broken, model->config());
  ModelSpec spec{.path = folder_ / "model"};
  spec.options.plan.kv_calibration = folder_ / "broken.json";
  KvTableOptions options{.contexts = {64}, .windows = 1};
  for (const char* name : {"int8:dynamic", "int8:channel", "fp8_e4m3:dynamic"})
    options.choices.push_back(parse_kv_choice(name).value());
  const auto rows = kv_table(spec, text_, options);
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_TRUE((*rows)[0].result.has_value());
  EXPECT_FALSE((*rows)[1].result.has_value());
  EXPECT_NE((*rows)[1].why_not.find("not finite"), std::string::npos);
  EXPECT_TRUE((*rows)[2].result.has_value());
  EXPECT_TRUE(std::isnan((*rows)[2].result->perplexity_change_standard_error()));  // one window tells of no error
  options.choices = {parse_kv_choice("int8:channel").value()};
  EXPECT_FALSE(kv_table(spec, text_, options).has_value());
}

// A prompt of one token repeated has the same values everywhere: logits cannot change with the position, however long.
TEST_F(KvCases, RepeatedTokenHasTheSameLogitsAtEveryPosition) {
  make(0, 1);
  calibrated("fp8_e4m3:static");
  // FP32 activations: where these are rounded, their last bits cost more than the cache.
  for (const char* kv : {"bf16", "fp8_e4m3:dynamic", "int8:dynamic", "fp8_e4m3:static", "fp8_e4m3:channel"}) {
    const auto model = load("calibrated", kv, "float32");
    const bool also_long = std::string_view(kv) == "fp8_e4m3:dynamic";
    for (const int64_t n : {64, 1024, 8192, 32768}) {
      if (n > 1024 && !also_long) continue;
      PagePool pool = model->make_kv_cache(n);
      Sequence sequence(*model, pool);
      double first = 0, last = 0;
      const std::vector<TokenId> tokens(static_cast<size_t>(n), 77);
      const auto fed =
          sequence.feed_all_logits(tokens, [&](int64_t begin, const float* rows, int64_t count, int64_t stride) {
            for (int64_t i = 0; i < count; ++i) {
              const int64_t position = begin + i;
              const auto logits = std::span(rows + i * stride, static_cast<size_t>(model->config().vocab_size));
              const double nll = negative_log_likelihood(logits, 77);
              if (position >= 1 && position < 33) first += nll / 32;
              if (position >= n - 31) last += nll / 31;
            }
          });
      ASSERT_TRUE(fed.has_value());
      EXPECT_NEAR(first, last, 0.05) << kv << ", " << n << " tokens";
    }
  }
}

}  // namespace
}  // namespace octavo
