// KV calibration from end to end: what the folder holds, that it loads, and what is refused.
#include "quantize/kv_calibrator.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "model_folder.h"
#include "quantize/attention_entropy.h"
#include "quantize/quantize_checkpoint.h"
#include "quantize/statistics_file.h"
#include "support/byte_tokenizer_json.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class KvCalibrate : public testing::Test {
 protected:
  void SetUp() override {
    std::string config(kOddModel);
    config.replace(config.find("\"vocab_size\": 96"), 16, "\"vocab_size\": 320");
    config.replace(config.find("\"num_key_value_heads\": 1"), 24, "\"num_key_value_heads\": 2");
    // Heads of different size, so that one scale for all is not theirs.
    write_model(model_, config, ElementType::kBf16,
                [](const std::string& name, std::vector<float>& values, const Shape&) {
                  if (!name.ends_with("k_proj.weight") && !name.ends_with("v_proj.weight")) return;
                  for (size_t i = values.size() / 2; i < values.size(); ++i) values[i] *= 4;
                });
    std::ofstream(model_ / "tokenizer.json") << byte_tokenizer_json({}, 320, {1, 2});
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * i * 7919 << " of this text\n\n";
  }
  QuantizeOptions options(const std::string& kv, const std::string& scheme = "fp8") const {
    QuantizeOptions options{.plan = {.scheme = scheme}, .threads = 2};
    options.calibrate.emplace();
    options.calibrate->data = {.sources = {{folder_ / "text.txt", 1}}, .samples = 6, .length = 48, .seed = 3};
    options.calibrate->rounding = Rounding::kNearest;
    options.calibrate->isa = best_isa();
    options.kv = KvCalibrateOptions{.kv = kv};
    return options;
  }
  Result<QuantizeSummary> run(const std::string& name, const QuantizeOptions& options) {
    return quantize_checkpoint(open_model(model_), folder_ / name, options);
  }
  std::string refusal(const QuantizeOptions& options) {
    const auto summary = run("refused", options);
    EXPECT_FALSE(fs::exists(folder_ / "refused"));
    return summary ? "" : summary.error().message();
  }

  TestFolder folder_;
  fs::path model_ = folder_ / "model";
};

TEST_F(KvCalibrate, RangesAreTheCalibrationsExtremes) {
  const auto summary = run("out", options("fp8_e4m3:static"));
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  const Checkpoint out = open_model(folder_ / "out");
  const KvCalibration* calibration = out.kv_calibration();
  ASSERT_NE(calibration, nullptr);
  EXPECT_EQ(kv_name(out.stored_plan().kv[1]), "fp8_e4m3:static");
  EXPECT_EQ(calibration->tokens, 6 * 48);
  const StatisticsMap statistics = read_statistics(folder_ / "out" / kStatisticsName).value();
  for (int head = 0; head < 2; ++head)
    for (const bool key : {true, false}) {  // of layer 0: what comes before it does not depend on the KV cache
      const KvCalibration::Layer& layer = calibration->layers[0];
      const float range = (key ? layer.k_range : layer.v_range)[static_cast<size_t>(head)];
      EXPECT_NEAR(range, statistics.at(kv_place_name(0, key, head)).amax(), range * 1e-6);
      for (int d = 0; d < 64 && key; ++d) {
        const auto c = static_cast<size_t>(64 * head + d);
        EXPECT_EQ(std::max(std::fabs(layer.k_min[c]), std::fabs(layer.k_max[c])),
                  statistics.at(kv_place_name(0, true, head)).channel_amax()[static_cast<size_t>(d)]);
      }
    }
  EXPECT_GT(calibration->layers[0].v_range[1], 2 * calibration->layers[0].v_range[0]);
  ASSERT_TRUE(summary->kv && summary->kv->k && summary->kv->v);
  EXPECT_EQ(summary->kv->k->saturated, 0);
  // A margin leaves headroom, a percentile cuts.
  QuantizeOptions margin = options("fp8_e4m3:static");
  margin.estimator = margin.calibrate->estimator = parse_estimator("margin:0.5").value();
  ASSERT_TRUE(run("margin", margin).has_value());
  const Checkpoint other = open_model(folder_ / "margin");
  EXPECT_NEAR(other.kv_calibration()->layers[0].k_range[0], 2 * calibration->layers[0].k_range[0],
              calibration->layers[0].k_range[0] * 1e-5);
  QuantizeOptions percentile = options("int8:static");
  percentile.estimator = percentile.calibrate->estimator = parse_estimator("percentile:90").value();
  const auto cut = run("percentile", percentile);
  ASSERT_TRUE(cut.has_value());
  EXPECT_GT(cut->kv->v->saturated, 0.05);
}

TEST_F(KvCalibrate, OneScalePerTensorIsWrittenForOtherEngines) {
  for (const std::string scheme : {"fp8", "bf16"}) {
    const auto summary = run(scheme, options("fp8_e4m3:tensor", scheme));
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    const Json kv = read_config(folder_ / scheme)["quantization_config"]["kv_cache_scheme"];
    EXPECT_EQ(kv["num_bits"], 8);
    EXPECT_EQ(kv["strategy"], "tensor");
    EXPECT_EQ(kv["dynamic"], false);
    fs::remove(folder_ / scheme / kKvCalibrationName);
    const Checkpoint out = open_model(folder_ / scheme);
    EXPECT_EQ(out.stored_plan().kv[0].k.scale_time, ScaleTime::kStored);
    const auto scales = out.kv_scales(1);
    ASSERT_TRUE(scales.has_value()) << scales.error().message();
    ASSERT_EQ(scales->v.size(), 1u);
    const TensorEntry* entry = out.tensors().find("model.layers.1.self_attn.v_scale");
    ASSERT_NE(entry, nullptr);
    EXPECT_GT(scales->v[0], 0);
    EXPECT_NE(scales->v[0], 1.0f);
  }
  // Per head there is no such tensor.
  ASSERT_TRUE(run("head", options("fp8_e4m3:static")).has_value());
  EXPECT_EQ(open_model(folder_ / "head").tensors().find("model.layers.1.self_attn.v_scale"), nullptr);
  EXPECT_TRUE(read_config(folder_ / "head")["quantization_config"]["kv_cache_scheme"].is_null());
}

TEST_F(KvCalibrate, WideTokensNeedNoRangeAndSkippedLayersStayWide) {
  ASSERT_TRUE(run("all", options("int8:channel:static")).has_value());
  ASSERT_TRUE(run("wide", options("int8:channel:static:wide8:skip1")).has_value());
  const Checkpoint all = open_model(folder_ / "all"), wide = open_model(folder_ / "wide");
  EXPECT_EQ(kv_name(wide.stored_plan().kv[0]), "int8:channel:wide8/int8:static:wide8");
  EXPECT_EQ(kv_name(wide.stored_plan().kv[1]), "bf16");
  EXPECT_EQ(all.kv_calibration()->tokens, 6 * 48);
  EXPECT_EQ(wide.kv_calibration()->tokens, 6 * (48 - 8)) << "tokens that are kept wide were not looked at";
  for (size_t c = 0; c < 128; ++c) {
    EXPECT_GE(wide.kv_calibration()->layers[0].k_min[c], all.kv_calibration()->layers[0].k_min[c]);
    EXPECT_LE(wide.kv_calibration()->layers[0].k_max[c], all.kv_calibration()->layers[0].k_max[c]);
  }
}

TEST_F(KvCalibrate, TheSameBytesForAnyThreads) {
  QuantizeOptions one = options("fp8_e5m2:static", "bf16"), three = one;
  one.kv->refit_temperature = three.kv->refit_temperature = true;
  one.threads = 1;
  three.threads = 3;
  const auto first = run("one", one), second = run("three", three);
  ASSERT_TRUE(first.has_value()) << first.error().message();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(read_text_file(folder_ / "one" / kKvCalibrationName).value(),
            read_text_file(folder_ / "three" / kKvCalibrationName).value());
  ASSERT_EQ(first->kv->entropies.size(), 2u);
  for (const KvReport::Entropy& e : first->kv->entropies) {
    EXPECT_GT(e.bf16, 0);
    EXPECT_NE(e.temperature, 1.0f);
    EXPECT_NEAR(e.temperature, 1.0f, 0.2f);
    // Rounding that spreads the scores lowers the entropy, and the factor brings it back: they move together.
    EXPECT_EQ(e.temperature < 1, e.lowered < e.bf16);
  }
  EXPECT_EQ(kv_name(open_model(folder_ / "one").stored_plan().kv[0]), "fp8_e5m2:static:temperature/fp8_e5m2:static");
}

TEST_F(KvCalibrate, WhatCannotBeIsRefused) {
  QuantizeOptions no_text = options("fp8_e4m3:static");
  no_text.calibrate.reset();
  EXPECT_NE(refusal(no_text).find("--calibrate"), std::string::npos);
  EXPECT_NE(refusal(options("fp8_e4m3:fast")).find("--kv"), std::string::npos);
  EXPECT_NE(refusal(options("bf16")).find("--kv bf16"), std::string::npos);
  EXPECT_NE(refusal(options("fp8_e4m3:temperature")).find("--refit-temperature"), std::string::npos);
  EXPECT_NE(refusal(options("fp8_e4m3:skip7")).find("layer 7"), std::string::npos);
  // Samples of 24 tokens, all of them wide: no range, and no scale of 1 in its place.
  QuantizeOptions all_wide = options("fp8_e4m3:static:wide24");
  all_wide.calibrate->data.length = 24;
  EXPECT_NE(refusal(all_wide).find("--length"), std::string::npos) << refusal(all_wide);
  all_wide.kv->kv = "fp8_e4m3:static:wide23";
  EXPECT_EQ(run("some", all_wide)->kv->tokens, 6);
}

TEST(AttentionEntropy, TheTemperatureRestoresTheEntropy) {
  ModelConfig config;
  config.num_heads = 2, config.num_kv_heads = 1, config.head_dim = 8;
  ThreadPool pool(2);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> queries(2 * 16), keys(40 * 8);
  for (auto* values : {&queries, &keys})
    for (float& x : *values) x = normal(random);
  const std::vector<int64_t> positions = {20, 39};
  AttentionEntropy exact, sharper;
  exact.add(config, positions, queries, keys, pool);
  for (float& x : keys) x *= 1.25f;
  sharper.add(config, positions, queries, keys, pool);
  EXPECT_LT(sharper.mean(1, pool), exact.mean(1, pool));
  EXPECT_NEAR(sharper.temperature_for(exact.mean(1, pool), pool), 0.8, 1e-4);
  // A query that sees n equal keys has entropy ln n.
  AttentionEntropy flat;
  flat.add(config, positions, std::vector<float>(32), keys, pool);
  EXPECT_NEAR(flat.mean(1, pool), (std::log(21) + std::log(40)) / 2, 1e-9);
}

}  // namespace
}  // namespace octavo
