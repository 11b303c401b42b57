// What is folded into weights leaves the network as it was, and makes its values round better.
#include "quantize/weight_transform.h"

#include <fmt/format.h>

#include <cmath>

#include "base/random.h"
#include "decoder_logits.h"
#include "model_folder.h"
#include "quantize/quantize_checkpoint.h"
#include "quantize/statistics_file.h"
#include "support/byte_tokenizer_json.h"
#include "support/golden.h"

namespace octavo {
namespace {

using Rotate = TransformOptions::Rotate;

PrecisionPlan float32_plan(const Checkpoint& checkpoint) {
  return make_plan(checkpoint.config().linear_modules(), static_cast<int>(checkpoint.config().num_layers),
                   {.scheme = "float32"})
      .value();
}

std::vector<float> random_factors(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> factors(count);
  for (float& factor : factors) factor = std::exp2(random.uniform(-3.0f, 3.0f));
  return factors;
}

constexpr LinearInput kPlaces[] = {LinearInput::kQkv, LinearInput::kO, LinearInput::kGateUp, LinearInput::kDown};

TEST(Rotation, IsOrthogonal) {
  for (const int64_t n : {1, 7, 64, 96, 576}) {
    const Rotation rotation(n, 5);
    std::vector<float> rows(static_cast<size_t>(n * n));  // R: the image of each unit vector
    for (int64_t i = 0; i < n; ++i) {
      rows[static_cast<size_t>(i * n + i)] = 1;
      rotation.apply(rows.data() + i * n, 1);
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < n; ++c)
          dot += static_cast<double>(rows[static_cast<size_t>(i * n + c)]) * rows[static_cast<size_t>(j * n + c)];
        ASSERT_NEAR(dot, i == j ? 1 : 0, 1e-5) << n << ": rows " << i << ", " << j;
      }
    // Along the first axis of [n][3] it does the same to each of the three columns.
    std::vector<float> wide(static_cast<size_t>(n * 3));
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i % 11) - 5;
    std::vector<float> column(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) column[static_cast<size_t>(i)] = wide[static_cast<size_t>(i * 3 + 1)];
    rotation.apply(wide.data(), 3);
    rotation.apply(column.data(), 1);
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(wide[static_cast<size_t>(i * 3 + 1)], column[static_cast<size_t>(i)]) << n << ": " << i;
  }
}

class EveryArchitecture : public testing::TestWithParam<const char*> {};

// In FP32, before rounding: rotated on and off line, scaled everywhere, and both.
TEST_P(EveryArchitecture, GivesTheSameLogits) {
  const std::string folder = test_data(std::string("tiny/") + GetParam());
  const Checkpoint source = open_model(folder);
  const ModelConfig& config = source.config();
  std::vector<int32_t> ids = Golden(folder + "/golden.safetensors").ints("input_ids");
  ids.resize(std::min<size_t>(ids.size(), 24));
  const std::vector<float> wanted = decoder_logits(source, float32_plan(source), ids);
  struct Way {
    Rotate rotate;
    bool scaled;
  };
  for (Way way : {Way{Rotate::kNone, true}, Way{Rotate::kOffline, false}, Way{Rotate::kOnline, true}}) {
    if (config.experts && way.rotate == Rotate::kNone) continue;  // mixtures of experts have no factors
    way.scaled = way.scaled && !config.experts;
    auto made = transform_checkpoint(source, {.rotate = way.rotate, .seed = 3, .smooth = way.scaled ? 0.5f : 0.0f});
    ASSERT_TRUE(made.has_value()) << made.error().message();
    WeightTransform& transform = *made->transform;
    if (way.scaled)
      for (int layer = 0; layer < static_cast<int>(config.num_layers); ++layer)
        for (const LinearInput place : kPlaces)
          if (transform.can_scale(place)) {
            const int64_t channels = place == LinearInput::kO      ? config.q_size()
                                     : place == LinearInput::kDown ? config.intermediate_size
                                                                   : config.hidden_size;
            transform.set_factors(layer, place,
                                  random_factors(static_cast<size_t>(channels), 7 * static_cast<uint64_t>(layer + 1)));
          }
    const Checkpoint& checkpoint = made->checkpoint;
    EXPECT_EQ(checkpoint.config().down_hadamard > 0, way.rotate == Rotate::kOnline);
    const std::vector<float> found = decoder_logits(checkpoint, float32_plan(checkpoint), ids);
    EXPECT_LT(relative_error(found, wanted), 2e-4) << transform.options().describe();
    // And the weights are others than they were.
    std::vector<float> before(static_cast<size_t>(config.hidden_size)), after = before;
    for (const auto& [tensors, row] : {std::pair{&source.tensors(), &before}, {&checkpoint.tensors(), &after}}) {
      const TensorEntry* entry = tensors->find("model.layers.0.self_attn.q_proj.weight");
      ASSERT_TRUE(tensors->read_f32(*entry, 3, 4, *row).has_value());
    }
    EXPECT_GT(relative_error(after, before), 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, EveryArchitecture,
                         testing::Values("llama_tied", "llama_untied_hd64", "llama_attention_bias", "qwen2_bias",
                                         "qwen3_qk_norm", "mistral_sliding", "mixtral", "qwen3_moe"),
                         [](const auto& test) { return std::string(test.param); });

TEST(WeightTransform, RowsDoNotDependOnHowTheyAreRead) {
  TestFolder folder;
  write_model(folder / "model", kOddModel);
  const Checkpoint source = open_model(folder / "model");
  auto made = transform_checkpoint(source, {.rotate = Rotate::kOnline, .smooth = 0.5f});
  ASSERT_TRUE(made.has_value()) << made.error().message();
  made->transform->set_factors(0, LinearInput::kO, random_factors(256, 3));
  const TensorReader& tensors = made->checkpoint.tensors();
  for (const TensorEntry& entry : tensors.entries()) {
    const int64_t rows = entry.shape.size() < 2 ? 1 : entry.shape[0], cols = entry.shape.back();
    std::vector<float> whole(static_cast<size_t>(rows * cols)), row(static_cast<size_t>(cols));
    ASSERT_TRUE(tensors.read_f32(entry, 0, rows, whole).has_value());
    for (int64_t r = 0; r < rows; r += 17) {
      ASSERT_TRUE(tensors.read_f32(entry, r, r + 1, row).has_value());
      ASSERT_TRUE(std::equal(row.begin(), row.end(), whole.begin() + r * cols)) << entry.name << ", row " << r;
    }
  }
}

// Norm weights stay exact in the type that they are stored in, so that nothing is lost when they are written.
TEST(WeightTransform, NormsStayExact) {
  TestFolder folder;
  write_model(folder / "model", kOddModel, ElementType::kBf16,
              [](const std::string& name, std::vector<float>& values, const Shape&) {
                if (name.find("norm") == std::string::npos) return;
                for (size_t i = 0; i < values.size(); ++i) values[i] = 0.3f + 0.01f * static_cast<float>(i);
                values[4] = 0;
              });
  const Checkpoint source = open_model(folder / "model");
  auto made = transform_checkpoint(source, {.smooth = 0.5f});
  ASSERT_TRUE(made.has_value());
  made->transform->set_factors(1, LinearInput::kGateUp, random_factors(320, 8));
  const auto norm = made->checkpoint.wide("model.layers.1.post_attention_layernorm.weight", {320});
  ASSERT_TRUE(norm.has_value());
  for (const float value : *norm) {
    uint16_t stored;
    store_element(ElementType::kBf16, &stored, 0, value);
    EXPECT_EQ(load_element(ElementType::kBf16, &stored, 0), value);
  }
  EXPECT_EQ((*made->transform->factors(1, LinearInput::kGateUp))[4], 1.0f);
}

class TransformedQuantization : public testing::Test {
 protected:
  // Channels 7 and 200 of every norm are sixty times the others; the weights behind them a sixtieth.
  void make() {
    std::string config(kOddModel);
    config.replace(config.find("\"vocab_size\": 96"), 16, "\"vocab_size\": 320");
    write_model(model_, config, ElementType::kBf16,
                [](const std::string& name, std::vector<float>& values, const Shape& shape) {
                  const auto cols = static_cast<size_t>(shape.back());
                  for (size_t i = 0; i < values.size(); ++i) {
                    const bool outlier = i % cols == 7 || i % cols == 200;
                    if (outlier && name.find("layernorm") != std::string::npos) values[i] *= 60;
                    if (outlier && cols == 320 &&
                        (name.find("self_attn") != std::string::npos || name.find("mlp") != std::string::npos))
                      values[i] /= 60;
                  }
                });
    ASSERT_TRUE(write_text_file(model_ / "tokenizer.json", byte_tokenizer_json({}, 320, {1, 2})).has_value());
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {} of this text\n\n", i * i * 7919);
    ASSERT_TRUE(write_text_file(folder_ / "text.txt", text).has_value());
  }
  QuantizeOptions options(const std::string& scheme) const {
    QuantizeOptions options{.plan = {.scheme = scheme}, .threads = 2};
    options.calibrate.emplace();
    options.calibrate->data = {.sources = {{folder_ / "text.txt", 1}}, .samples = 4, .length = 48, .seed = 3};
    options.calibrate->rounding = Rounding::kNearest;
    options.calibrate->isa = best_isa();
    return options;
  }
  // Relative RMS error of the logits against the source's in FP32.
  double error_of(const std::string& name, const QuantizeOptions& options) {
    const Checkpoint source = open_model(model_);
    const auto summary = quantize_checkpoint(source, folder_ / name, options);
    EXPECT_TRUE(summary.has_value()) << (summary ? "" : summary.error().message());
    if (!summary) return INFINITY;
    std::vector<int32_t> ids;  // text like the calibration's: byte tokens
    for (const char c : std::string("line 8675309 of this text\n\nline 31415926 of this")) ids.push_back(c);
    const Checkpoint out = open_model(folder_ / name);
    const std::vector<float> wanted = decoder_logits(source, float32_plan(source), ids),
                             found = decoder_logits(out, out.stored_plan(), ids);
    double difference = 0, size = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      difference += (found[i] - wanted[i]) * static_cast<double>(found[i] - wanted[i]);
      size += static_cast<double>(wanted[i]) * wanted[i];
    }
    return std::sqrt(difference / size);
  }

  TestFolder folder_;
  std::filesystem::path model_ = folder_ / "model";
};

TEST_F(TransformedQuantization, OutliersOfActivationsAreSmoothedAndRotated) {
  make();
  QuantizeOptions smooth = options("int8"), rotate = options("int8"), offline = options("int8");
  smooth.transforms.smooth = 0.5f;
  rotate.transforms.rotate = Rotate::kOnline;
  rotate.calibrate.reset();
  offline.transforms.rotate = Rotate::kOffline;
  const double plain = error_of("plain", options("int8")), smoothed = error_of("smooth", smooth);
  EXPECT_LT(smoothed, plain / 3);
  EXPECT_LT(error_of("rotate", rotate), plain / 3);
  EXPECT_LT(error_of("offline", offline), plain / 3);
  // What the engine has to apply stands in config.json; nothing does for the others.
  EXPECT_EQ(open_model(folder_ / "rotate").config().down_hadamard, 64);
  EXPECT_EQ(open_model(folder_ / "offline").config().down_hadamard, 0);
  EXPECT_FALSE(read_config(folder_ / "offline").contains("octavo_transforms"));
  EXPECT_FALSE(read_config(folder_ / "smooth").contains("octavo_transforms"));
}

TEST_F(TransformedQuantization, AwqAndSearchedScalesBeatRounding) {
  make();
  QuantizeOptions awq = options("int4"), both = options("int4");
  awq.calibrate->data.samples = both.calibrate->data.samples = 24;
  awq.transforms.awq = both.transforms.awq = true;
  both.calibrate->rounding = Rounding::kGptq;
  const double plain = error_of("plain", options("int4"));
  EXPECT_LT(error_of("awq", awq), plain);
  EXPECT_LT(error_of("awq-gptq", both), plain);
}

TEST_F(TransformedQuantization, AnInterruptedRunGivesTheSameBytes) {
  make();
  const Checkpoint source = open_model(model_);
  for (const bool awq : {false, true}) {
    QuantizeOptions whole = options("int8");
    whole.transforms.rotate = Rotate::kOnline;
    whole.transforms.awq = awq;
    whole.transforms.smooth = awq ? 0.0f : 0.5f;
    const std::string first = fmt::format("whole{}", awq), second = fmt::format("resumed{}", awq);
    ASSERT_TRUE(quantize_checkpoint(source, folder_ / first, whole).has_value());
    struct Stop {};
    QuantizeOptions stopped = whole;
    stopped.calibrate->progress = [](double done, double, std::string_view) {
      if (done == 35) throw Stop();  // in the second layer
    };
    EXPECT_THROW((void)quantize_checkpoint(source, folder_ / second, stopped), Stop);
    EXPECT_TRUE(std::filesystem::exists(WorkFolder::path_for(folder_ / second) / "layer-00000.safetensors"));
    QuantizeOptions other = whole;
    other.transforms.seed = 9;
    EXPECT_FALSE(quantize_checkpoint(source, folder_ / second, other).has_value());
    ASSERT_TRUE(quantize_checkpoint(source, folder_ / second, whole).has_value());
    EXPECT_EQ(read_text_file(folder_ / first / "model.safetensors").value(),
              read_text_file(folder_ / second / "model.safetensors").value());
  }
}

TEST_F(TransformedQuantization, WhatNeedsTextSaysSo) {
  make();
  const Checkpoint source = open_model(model_);
  QuantizeOptions smooth = options("int8");
  smooth.transforms.smooth = 0.5f;
  smooth.calibrate.reset();
  const auto refused = quantize_checkpoint(source, folder_ / "out", smooth);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("--smooth"), std::string::npos);
  QuantizeOptions both = options("int8");
  both.transforms = {.smooth = 0.5f, .awq = true};
  EXPECT_FALSE(quantize_checkpoint(source, folder_ / "out", both).has_value());
  // Activation scales belong to the weights that they were seen behind.
  QuantizeOptions fixed = options("fp8-static");
  fixed.transforms.smooth = 0.5f;
  ASSERT_TRUE(quantize_checkpoint(source, folder_ / "smooth", fixed).has_value());
  for (const auto& from : {folder_ / "smooth", folder_ / "smooth" / kStatisticsName}) {
    const auto earlier = read_earlier_scales(from, source.config());
    ASSERT_FALSE(earlier.has_value());
    EXPECT_NE(earlier.error().message().find("smooth 0.5"), std::string::npos);
  }
  fixed.transforms = {};
  ASSERT_TRUE(quantize_checkpoint(source, folder_ / "plain", fixed).has_value());
  QuantizeOptions mixed{.plan = {.scheme = ""}, .threads = 1};
  mixed.earlier = read_earlier_scales(folder_ / "plain", source.config()).value();
  mixed.transforms.rotate = Rotate::kOffline;
  const auto refused_mix = quantize_checkpoint(source, folder_ / "out", mixed);
  ASSERT_FALSE(refused_mix.has_value());
  EXPECT_NE(refused_mix.error().message().find("--scales-from"), std::string::npos);
}

// A rotation of what is rotated would transform down's inputs once and its weights twice.
TEST_F(TransformedQuantization, ARotatedSourceIsNotRotatedAgain) {
  std::string config(kOddModel);
  config.insert(config.rfind('}'), R"(, "octavo_transforms": {"down_proj_input": {"type": "hadamard", "block": 64}})");
  write_model(model_, config);
  const Checkpoint source = open_model(model_);
  for (const Rotate rotate : {Rotate::kOnline, Rotate::kOffline}) {
    QuantizeOptions again{.plan = {.scheme = "int8"}, .threads = 1};
    again.transforms.rotate = rotate;
    const auto refused = quantize_checkpoint(source, folder_ / "out", again);
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message().find("--rotate"), std::string::npos) << refused.error().message();
  }
  // As it is, it keeps its transform.
  const auto kept = quantize_checkpoint(source, folder_ / "out", {.plan = {.scheme = "int8"}, .threads = 1});
  ASSERT_TRUE(kept.has_value()) << kept.error().message();
  EXPECT_EQ(open_model(folder_ / "out").config().down_hadamard, 64);
}

}  // namespace
}  // namespace octavo
