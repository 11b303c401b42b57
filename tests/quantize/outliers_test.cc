// Outlier channels from calibration to logits.
#include "quantize/outliers.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include "decoder_logits.h"
#include "model_folder.h"
#include "quantize/quantize_checkpoint.h"
#include "quantize/work_folder.h"
#include "support/byte_tokenizer_json.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr int kPlanted = 7;  // channel of the residual stream that the norms make large

std::string config_text() {
  std::string config(kOddModel);
  config.replace(config.find("\"vocab_size\": 96"), 16, "\"vocab_size\": 320");
  return config;
}

class Outliers : public testing::Test {
 protected:
  void SetUp() override {
    write_model(model_, config_text(), ElementType::kBf16,
                [](const std::string& name, std::vector<float>& values, const Shape&) {
                  if (name.ends_with("layernorm.weight")) values[kPlanted] = 100.0f;
                });
    std::ofstream(model_ / "tokenizer.json") << byte_tokenizer_json({}, 320, {1, 2});
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i * 7919) + " of this text\n\n";
    std::ofstream(folder_ / "text.txt") << text;
  }
  QuantizeOptions options(const std::string& scheme, double share) const {
    QuantizeOptions options{.plan = {.scheme = scheme}, .threads = 2};
    options.calibrate.emplace();
    options.calibrate->data = {.sources = {{folder_ / "text.txt", 1}}, .samples = 4, .length = 48, .seed = 3};
    options.calibrate->isa = best_isa();
    options.outliers = share;
    return options;
  }
  Result<QuantizeSummary> run(const std::string& name, const QuantizeOptions& options) {
    return quantize_checkpoint(open_model(model_), folder_ / name, options);
  }
  std::string error_of(const QuantizeOptions& options) {
    const auto summary = run("refused", options);
    EXPECT_FALSE(fs::exists(folder_ / "refused"));
    return summary ? "" : summary.error().message();
  }
  // Relative RMS error of the logits against those of the source.
  double logit_error(const std::string& name) {
    const Checkpoint source = open_model(model_), out = open_model(folder_ / name);
    const std::vector<float> want = decoder_logits(source, source.stored_plan(), ids_),
                             got = decoder_logits(out, out.stored_plan(), ids_);
    double error = 0, all = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(double{got[i]} - double{want[i]}, 2);
      all += double{want[i]} * double{want[i]};
    }
    return std::sqrt(error / all);
  }
  std::string bytes_of(const std::string& name) const {
    return read_text_file(folder_ / name / "model.safetensors").value();
  }

  TestFolder folder_;
  fs::path model_ = folder_ / "model";
  std::vector<int32_t> ids_ = {1, 40, 77, 12, 105, 33, 201, 90, 64, 18, 250, 5};
};

TEST_F(Outliers, TheLargestChannelsInOrder) {
  const std::vector<float> amax = {1, 9, 3, 9, 2, 8};
  EXPECT_EQ(choose_outliers(amax, 1), (std::vector<int32_t>{1}));
  EXPECT_EQ(choose_outliers(amax, 3), (std::vector<int32_t>{1, 3, 5}));
  std::vector<float> weight = {1, 2, 3, 4, 5, 6.001f};
  const StoredOutliers taken = take_outlier_columns(weight, 3, {0, 2});
  EXPECT_EQ(taken.weight, (std::vector<float>{1, 3, 4, 6}));
  EXPECT_EQ(weight, (std::vector<float>{0, 2, 0, 0, 5, 0}));
}

TEST_F(Outliers, APlantedChannelCostsNothingAnyMore) {
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kGptq}) {
    QuantizeOptions without = options("int8", 0), with = options("int8", 0.01);
    without.calibrate->rounding = with.calibrate->rounding = rounding;
    const std::string suffix = rounding == Rounding::kGptq ? "gptq" : "nearest";
    ASSERT_TRUE(run("without-" + suffix, without).has_value());
    const auto summary = run("with-" + suffix, with);
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    EXPECT_LT(logit_error("with-" + suffix), 0.4 * logit_error("without-" + suffix)) << suffix;
  }
}

// The folder holds the source's columns, zeros in their place, and computes what a model of these weights does.
TEST_F(Outliers, RoundTripComputesWhatTheWeightsSay) {
  for (const std::string scheme : {"int8", "fp8"}) {
    const auto summary = run(scheme, options(scheme, 0.02));
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    const Checkpoint source = open_model(model_), out = open_model(folder_ / scheme);
    std::map<std::string, std::vector<float>> whole;
    for (const LinearModule& module : out.config().linear_modules()) {
      if (!out.stored_plan().linear(module.name).weight.scaled()) continue;
      const auto linear = out.linear(module.name);
      ASSERT_TRUE(linear.has_value()) << linear.error().message();
      const StoredOutliers& outliers = linear->outliers;
      ASSERT_EQ(std::ssize(outliers.channels), std::llround(static_cast<double>(module.cols) * 0.02));
      const bool normed = module.role <= Role::kV || module.role == Role::kGate || module.role == Role::kUp;
      if (normed) {
        EXPECT_EQ(std::count(outliers.channels.begin(), outliers.channels.end(), kPlanted), 1) << module.name;
      }
      std::vector<float>& values = whole[module.name + ".weight"] = dequantize(linear->view());
      const std::vector<float> before = plain_values(*source.tensors().find(module.name + ".weight"));
      const size_t count = outliers.channels.size();
      for (size_t i = 0; i < outliers.weight.size(); ++i) {
        const size_t at =
            i / count * static_cast<size_t>(module.cols) + static_cast<size_t>(outliers.channels[i % count]);
        ASSERT_EQ(values[at], 0.0f) << module.name;
        ASSERT_EQ(outliers.weight[i], before[at]) << module.name;
        values[at] = outliers.weight[i];
      }
    }
    write_model(folder_ / (scheme + "-wide"), config_text(), ElementType::kF32,
                [&](const std::string& name, std::vector<float>& values, const Shape&) {
                  const auto found = whole.find(name);
                  values = found != whole.end() ? found->second : plain_values(*source.tensors().find(name));
                });
    const Checkpoint wide = open_model(folder_ / (scheme + "-wide"));
    const PrecisionPlan plan = make_plan(wide.config(), {.scheme = "float32"}).value();
    const std::vector<float> want = decoder_logits(wide, plan, ids_), got = decoder_logits(out, plan, ids_);
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(want[i], got[i], 2e-4f * (1 + std::fabs(want[i]))) << scheme;
    // As stored, the same bits on every row of the FMA family.
    const std::vector<float> reference = decoder_logits(out, out.stored_plan(), ids_, Isa::kReference);
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512})
      if (isa_available(isa)) {
        const std::vector<float> logits = decoder_logits(out, out.stored_plan(), ids_, isa);
        EXPECT_EQ(std::memcmp(reference.data(), logits.data(), logits.size() * sizeof(float)), 0)
            << scheme << " " << isa_name(isa);
      }
  }
}

TEST_F(Outliers, EverySchemeThatTheDialectHasAndResumedRuns) {
  for (const std::string scheme : {"fp8-weight", "int4", "nvfp4", "mxfp4"}) {
    const auto summary = run(scheme, options(scheme, 0.02));
    ASSERT_TRUE(summary.has_value()) << scheme << ": " << summary.error().message();
    EXPECT_LT(logit_error(scheme), 0.5) << scheme;
  }
  ASSERT_TRUE(run("plain", options("int8", 0.02)).has_value());
  struct Stop {};
  QuantizeOptions stopped = options("int8", 0.02);
  stopped.calibrate->progress = [&](double done, double, std::string_view) {
    if (done == 30) throw Stop();
  };
  EXPECT_THROW((void)run("resumed", stopped), Stop);
  EXPECT_TRUE(fs::exists(WorkFolder::path_for(folder_ / "resumed") / "layer-00000.safetensors"));
  ASSERT_TRUE(run("resumed", options("int8", 0.02)).has_value());
  EXPECT_EQ(bytes_of("plain"), bytes_of("resumed"));
}

TEST_F(Outliers, WhatDoesNotGoTogetherIsRefused) {
  QuantizeOptions uncalibrated = options("int8", 0.01);
  uncalibrated.calibrate.reset();
  EXPECT_NE(error_of(uncalibrated).find("--calibrate"), std::string::npos);
  EXPECT_NE(error_of(options("fp8-block", 0.01)).find("compressed-tensors"), std::string::npos);
  QuantizeOptions fixed = options("fp8-static", 0.01);
  fixed.dialect = "compressed-tensors";
  EXPECT_NE(error_of(fixed).find("static"), std::string::npos);
  QuantizeOptions cache_alone = options("bf16", 0.01);
  cache_alone.kv.emplace();
  cache_alone.kv->kv = "fp8_e4m3:static";
  EXPECT_NE(error_of(cache_alone).find("--outliers"), std::string::npos);
  ASSERT_TRUE(run("earlier", options("int8", 0.01)).has_value());
  const auto earlier = read_earlier_scales(folder_ / "earlier", open_model(model_).config());
  ASSERT_FALSE(earlier.has_value());
  EXPECT_NE(earlier.error().message().find("--scales-from"), std::string::npos);
}

TEST_F(Outliers, DamagedFilesAreNamed) {
  ASSERT_TRUE(run("good", options("int8", 0.02)).has_value());
  const fs::path file = folder_ / "good" / "model.safetensors", config = folder_ / "good" / "config.json";
  const std::string bytes = bytes_of("good"), text = read_text_file(config).value();
  const std::string module = "model.layers.1.mlp.up_proj";
  const auto with_config = [&](const Json& outliers) {
    Json changed = parse_json(text, "config.json").value();
    changed["quantization_config"]["octavo_outliers"] = outliers;
    EXPECT_TRUE(write_text_file(config, changed.dump()).has_value());
    const auto opened = Checkpoint::open(folder_ / "good");
    EXPECT_TRUE(write_text_file(config, text).has_value());
    return opened ? std::string() : opened.error().message();
  };
  for (const Json& share : {Json(0), Json(0.2), Json("1%"), Json(-1), Json(nullptr)})
    EXPECT_NE(with_config({{"share", share}}).find("octavo_outliers"), std::string::npos) << share.dump();
  EXPECT_NE(with_config(Json(0.01)).find("octavo_outliers"), std::string::npos);
  EXPECT_NE(with_config({{"share", 0.05}}).find("outlier_channels"), std::string::npos);  // other shapes

  Json bare = parse_json(text, "config.json").value();
  bare["quantization_config"].erase("octavo_outliers");
  ASSERT_TRUE(write_text_file(config, bare.dump()).has_value());
  const auto unused = open_model(folder_ / "good").unused();
  ASSERT_TRUE(write_text_file(config, text).has_value());
  ASSERT_FALSE(unused.has_value());

  const auto with_channel = [&](int32_t value) {
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const Json entries = parse_json(bytes.substr(8, header), "header").value();
    const auto begin = entries[module + ".outlier_channels"]["data_offsets"][0].get<size_t>();
    std::string changed = bytes;
    std::memcpy(changed.data() + 8 + header + begin + sizeof value, &value, sizeof value);
    std::ofstream(file, std::ios::binary) << changed;
    const auto linear = open_model(folder_ / "good").linear(module);
    return linear ? std::string() : linear.error().message();
  };
  for (const int32_t value : {-1, 0, 320, 1 << 30})
    EXPECT_NE(with_channel(value).find(module + ".outlier_channels"), std::string::npos) << value;
}

}  // namespace
}  // namespace octavo
