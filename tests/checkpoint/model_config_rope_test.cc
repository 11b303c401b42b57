// Rotary scaling: its keys in both spellings, and frequencies against values computed in exact arithmetic elsewhere.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/model_config.h"

namespace octavo {
namespace {

ModelConfig model(int64_t head_dim, double theta, RopeType type, double factor, int64_t original) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope.theta = theta;
  config.rope.type = type;
  config.rope.factor = factor;
  config.rope.original_max_position = original;
  return config;
}

Result<ModelConfig> parse(const std::string& keys) {
  return parse_model_config(
      R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_hidden_layers":1,"max_position_embeddings":512,)" +
          keys + "}",
      "config.json");
}

void expect_refused(const std::string& keys, const std::string& reason) {
  const auto config = parse(keys);
  ASSERT_FALSE(config) << "accepted: " << keys;
  EXPECT_NE(config.error().message().find(reason), std::string::npos) << config.error().message();
}

TEST(RopeFrequencies, Default) {
  const RopeTable table = inverse_frequencies(model(8, 10000, RopeType::kDefault, 1, 0));
  ASSERT_EQ(table.inverse_frequencies.size(), 4u);
  const float want[] = {1.0f, 0.1f, 0.01f, 0.001f};
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(table.inverse_frequencies[i], want[i]);
  EXPECT_EQ(table.attention_factor, 1.0f);
}

TEST(RopeFrequencies, LinearDividesByTheFactor) {
  const RopeTable table = inverse_frequencies(model(8, 10000, RopeType::kLinear, 4, 0));
  EXPECT_FLOAT_EQ(table.inverse_frequencies[0], 0.25f);
  EXPECT_FLOAT_EQ(table.inverse_frequencies[3], 0.00025f);
}

// theta' = theta (factor L / trained - (factor - 1))^(dim / (dim - 2)) at L = factor x trained: factor 2 gives the
// power of 3.
TEST(RopeFrequencies, DynamicTakesItsBaseOnce) {
  const ModelConfig config = model(16, 10000, RopeType::kDynamic, 2, 64);
  const RopeTable table = inverse_frequencies(config);
  const double theta = 10000 * std::pow(3.0, 16.0 / 14.0);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_FLOAT_EQ(table.inverse_frequencies[i], static_cast<float>(std::pow(theta, -static_cast<double>(i) / 8.0)));
}

TEST(RopeFrequencies, Llama3Ratios) {
  const auto check = [](int64_t dim, double factor, std::vector<std::pair<size_t, double>> ratios) {
    ModelConfig config = model(dim, 500000, RopeType::kDefault, factor, 8192);
    const RopeTable base = inverse_frequencies(config);
    config.rope.type = RopeType::kLlama3;
    config.rope.low_freq_factor = 1, config.rope.high_freq_factor = 4;
    const RopeTable scaled = inverse_frequencies(config);
    for (const auto& [i, ratio] : ratios)
      EXPECT_NEAR(base.inverse_frequencies[i] / scaled.inverse_frequencies[i], ratio, 1e-5 * ratio) << i;
  };
  check(128, 8, {{28, 1}, {29, 1.20748}, {30, 1.55341}, {32, 2.69453}, {34, 5.25733}, {35, 8}});  // Llama 3.1
  check(64, 32, {{14, 1}, {15, 1.65133}, {16, 3.29226}, {17, 9.66673}, {18, 32}});                // Llama 3.2 1B
}

TEST(RopeFrequencies, Yarn) {
  const auto check = [](const RopeTable& table, std::vector<std::pair<size_t, double>> values) {
    for (const auto& [i, value] : values) EXPECT_NEAR(table.inverse_frequencies[i], value, 1e-6 * value) << i;
  };
  ModelConfig deepseek = model(64, 10000, RopeType::kYarn, 40, 4096);
  deepseek.rope.mscale = deepseek.rope.mscale_all_dim = 1;
  const RopeTable one = inverse_frequencies(deepseek);
  check(one, {{10, 0.0562341325}, {11, 0.0390069266}, {16, 0.0055}, {22, 1.77827941e-4}, {23, 3.33380358e-5}});
  EXPECT_FLOAT_EQ(one.attention_factor, 1.0f);
  ModelConfig gpt_oss = model(64, 150000, RopeType::kYarn, 32, 4096);
  gpt_oss.rope.truncate = false;
  const RopeTable two = inverse_frequencies(gpt_oss);
  check(two, {{8, 0.0508132748}, {9, 0.0317056962}, {12, 0.00679495949}, {17, 1.29318701e-4}, {18, 3.83088124e-5}});
  EXPECT_FLOAT_EQ(two.attention_factor, 1.34657359f);
  gpt_oss.rope.attention_factor = 1.25;
  EXPECT_FLOAT_EQ(inverse_frequencies(gpt_oss).attention_factor, 1.25f);
}

TEST(RopeKeys, PrecedenceOfThetaAndOriginal) {
  EXPECT_EQ(parse(R"("rope_theta":5e5)")->rope.theta, 5e5);
  EXPECT_EQ(parse(R"("rope_theta":5e5,"rope_parameters":{"rope_theta":1e6,"rope_type":"default"})")->rope.theta, 1e6);
  EXPECT_EQ(parse(R"("rope_theta":5e5,"rope_scaling":{"type":"linear","factor":2})")->rope.theta, 5e5);
  EXPECT_EQ(parse(R"("bos_token_id":1)")->rope.theta, 1e4);
  EXPECT_EQ(parse(R"("rope_scaling":{"type":"dynamic","factor":2})")->rope.original_max_position, 512);
  EXPECT_EQ(parse(R"("original_max_position_embeddings":128,"rope_scaling":{"type":"yarn","factor":2})")
                ->rope.original_max_position,
            128);
  EXPECT_EQ(parse(R"("rope_scaling":{"type":"yarn","original_max_position_embeddings":128})")->rope.factor, 4);
  EXPECT_EQ(parse(R"("rope_scaling":{"type":"mrope","mrope_section":[1,2]})")->rope.type, RopeType::kDefault);
  EXPECT_EQ(parse(R"("rope_scaling":null)")->rope.type, RopeType::kDefault);
}

TEST(RopeKeys, BothSpellingsMustAgree) {
  EXPECT_TRUE(parse(
      R"("rope_theta":1e4,"rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":1e4})"));
  expect_refused(R"("rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"linear","factor":4})",
                 "disagree");
}

TEST(RopeKeys, PerLayerType) {
  const std::string linear = R"({"rope_type":"linear","factor":2,"rope_theta":1e4})";
  const auto same =
      parse(R"("rope_parameters":{"full_attention":)" + linear + R"(,"sliding_attention":)" + linear + "}");
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_EQ(same->rope.type, RopeType::kLinear);
  expect_refused(
      R"("rope_parameters":{"full_attention":)" + linear + R"(,"sliding_attention":{"rope_type":"default"}})",
      "differ");
}

TEST(RopeKeys, Refusals) {
  expect_refused(R"("rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[1]})", "longrope");
  expect_refused(R"("rope_scaling":{"type":"su"})", "su");
  expect_refused(R"("rope_scaling":{"rope_type":"linear"})", "factor");
  expect_refused(R"("rope_scaling":{"rope_type":"linear","factor":0})", "factor");
  expect_refused(R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})",
                 "low_freq_factor");
  expect_refused(R"("rope_scaling":{"rope_type":"yarn","factor":8,"original_max_position_embeddings":0})",
                 "original_max");
  expect_refused(R"("rope_scaling":"linear")", "rope_scaling");
  expect_refused(R"("rope_theta":0)", "rope_theta");
  expect_refused(R"("rope_theta":-1e4)", "rope_theta");
  expect_refused(R"("partial_rotary_factor":0.5)", "partial_rotary_factor");
  expect_refused(R"("rope_parameters":{"rope_type":"default","partial_rotary_factor":0.25})", "partial_rotary_factor");
  EXPECT_TRUE(parse(R"("partial_rotary_factor":1.0)"));
}

}  // namespace
}  // namespace octavo
