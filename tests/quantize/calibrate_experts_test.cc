// Calibrated quantization of a mixture of experts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "calibrated_folder.h"
#include "quantize/expert_coverage.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

constexpr int64_t kTokens = 6 * 48;  // of calibrated_folder.h

class CalibrateExperts : public CalibratedFolder {
 protected:
  void make(const Change& change = {}) { CalibratedFolder::make(change, kExpertModel); }
  // The scores of all experts of the last layer but 3, 4 and 5 are zero: of equals the first ones are passed.
  void make_uneven() {
    make([](const std::string& name, std::vector<float>& values, const Shape& shape) {
      if (name != "model.layers.2.mlp.gate.weight") return;
      for (size_t i = 0; i < values.size(); ++i) {
        const auto expert = static_cast<int64_t>(i) / shape[1];
        if (expert < 3 || expert > 5) values[i] = 0;
      }
    });
  }
};

TEST_F(CalibrateExperts, GptqBeatsRoundingAndRoutersStay) {
  make();
  for (const std::string scheme : {"fp8", "fp8-static", "int8", "int4-g32", "nvfp4"}) {
    const auto summary = run(scheme, options(scheme));
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    EXPECT_EQ(summary->quantized.size(), 3u * 4 + 2 * 24 * 3 + 3);
    double ratios = 0;
    for (const auto& tensor : summary->quantized) {
      EXPECT_GT(tensor.objective_ratio, 0) << tensor.name;
      EXPECT_LT(tensor.objective_ratio, 1.05) << tensor.name;
      ratios += tensor.objective_ratio;
    }
    EXPECT_LT(ratios, 0.9 * static_cast<double>(summary->quantized.size())) << scheme;
    const Checkpoint source = open_model(model_), out = open_model(folder_ / scheme);
    EXPECT_EQ(out.notes(), std::vector<std::string>{}) << scheme;
    for (const LinearModule& module : out.config().linear_modules()) {
      const auto linear = out.linear(module.name);
      ASSERT_TRUE(linear.has_value()) << linear.error().message();
      const bool wide = module.role == Role::kHead || module.role == Role::kRouter;
      EXPECT_EQ(linear->format.scaled(), !wide) << module.name;
      EXPECT_EQ(linear->input_scale.has_value(), scheme == "fp8-static" && !wide) << module.name;
      if (module.role == Role::kRouter) {
        EXPECT_EQ(plain_values(*linear->entry), plain_values(*source.linear(module.name)->entry));
      }
    }
  }
}

TEST_F(CalibrateExperts, CoverageIsCountedAndReported) {
  make();
  const auto summary = run("out", options());
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  ASSERT_EQ(summary->expert_tokens.size(), 3u);
  EXPECT_TRUE(summary->expert_tokens[1].empty());
  const StatisticsMap statistics = read_statistics(folder_ / "out" / kStatisticsName).value();
  for (const size_t layer : {0u, 2u}) {
    const std::vector<int64_t>& tokens = summary->expert_tokens[layer];
    ASSERT_EQ(tokens.size(), 24u);
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 3 * kTokens);
    for (size_t e = 0; e < tokens.size(); ++e) {
      const auto place = [&](std::string_view input) {
        return statistics.at(fmt::format("model.layers.{}.experts.{}.{}_input", layer, e, input)).histogram().finite();
      };
      const auto seen = static_cast<uint64_t>(tokens[e] == 0 ? kTokens : tokens[e]);
      EXPECT_EQ(place("gate_up"), seen * 320);
      EXPECT_EQ(place("down"), seen * 96);
    }
  }
  const Json report = parse_json(bytes_of("out", "calibration.json"), "calibration.json").value();
  const Json& experts = report["calibration"]["experts"];
  ASSERT_EQ(experts.size(), 2u);
  EXPECT_EQ(experts[1]["layer"], 2);
  EXPECT_EQ(experts[1]["tokens"], Json(summary->expert_tokens[2]));
  EXPECT_EQ(report["notes"], Json(summary->notes));
  // A text this small leaves all of them short, and the notes say so.
  const auto short_of = [](const std::string& note) {
    return note.find("saw fewer than 512 tokens") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(summary->notes.begin(), summary->notes.end(), short_of), 2);
}

TEST_F(CalibrateExperts, AnExpertThatNoTokenReachesIsSaidAndCalibratedOnAllTokens) {
  make_uneven();
  const auto summary = run("out", options("fp8-static"));
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  const std::vector<int64_t>& tokens = summary->expert_tokens[2];
  for (size_t e = 6; e < 24; ++e) EXPECT_EQ(tokens[e], 0) << e;
  const auto unreached = [](const std::string& note) {
    return note ==
           "layer 2: no token of the calibration reached experts 6, 7, 8, 9, 10, 11, 12, 13 and 10 more: "
           "calibrated on all tokens of the layer instead";
  };
  EXPECT_EQ(std::count_if(summary->notes.begin(), summary->notes.end(), unreached), 1)
      << fmt::format("{}", fmt::join(summary->notes, "\n"));
  const StatisticsMap statistics = read_statistics(folder_ / "out" / kStatisticsName).value();
  // Its input is what the router reads.
  EXPECT_EQ(statistics.at("model.layers.2.experts.9.gate_up_input"), statistics.at("model.layers.2.router_input"));
  const Checkpoint out = open_model(folder_ / "out");
  const float amax = statistics.at("model.layers.2.experts.9.down_input").amax();
  EXPECT_GT(amax, 0);
  EXPECT_EQ(out.linear("model.layers.2.mlp.experts.9.down_proj")->input_scale,
            scale_from_amax(amax, tensor_wide_format(ElementType::kE4m3)));
  for (const auto& tensor : summary->quantized)
    if (tensor.name.find("layers.2.mlp.experts.9.") != std::string::npos) {
      EXPECT_GT(tensor.objective_ratio, 0) << tensor.name;
      EXPECT_LT(tensor.objective_ratio, 1) << tensor.name;
    }
}

TEST_F(CalibrateExperts, TheSameBytesForAnyThreadsSpilledOrInterrupted) {
  make_uneven();
  const auto plain = run("plain", options());
  ASSERT_TRUE(plain.has_value()) << plain.error().message();
  QuantizeOptions other = options();
  other.threads = 3;
  other.calibrate->memory_limit = 0;
  ASSERT_TRUE(run("spilled", other).has_value());
  EXPECT_EQ(bytes_of("plain"), bytes_of("spilled"));
  for (const double at : {3.0, 30.0, 70.0, 110.0}) stop_at(at, "resumed", options());
  const auto resumed = run("resumed", options());
  ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
  EXPECT_EQ(bytes_of("plain"), bytes_of("resumed"));
  EXPECT_EQ(plain->notes, resumed->notes);
  EXPECT_EQ(plain->expert_tokens, resumed->expert_tokens);
  EXPECT_EQ(bytes_of("plain", "calibration.json"), bytes_of("resumed", "calibration.json"));
}

TEST_F(CalibrateExperts, DamageIsNamedWithItsExpert) {
  make([](const std::string& name, std::vector<float>& values, const Shape&) {
    if (name.find("layers.0.mlp.experts.7.up_proj") == std::string::npos) return;
    for (float& value : values) value = 3e38f;
  });
  const std::string error = error_of(options());
  EXPECT_NE(error.find("activations are NaN or infinite"), std::string::npos) << error;
  EXPECT_NE(error.find("model.layers.0.experts.7.down_input, "), std::string::npos) << error;
  EXPECT_NE(error.find("text.txt"), std::string::npos) << error;
}

TEST_F(CalibrateExperts, FactorsPerChannelAreRefused) {
  make();
  QuantizeOptions smooth = options("int8"), awq = options("int4");
  smooth.transforms.smooth = 0.5f;
  awq.transforms.awq = true;
  EXPECT_NE(error_of(smooth).find("factors per channel for a mixture of experts"), std::string::npos);
  EXPECT_NE(error_of(awq).find("use --rounding gptq"), std::string::npos);
}

TEST(ExpertCoverage, OfAModel) {
  const ExpertCoverage none = expert_coverage({{}, {}});
  EXPECT_EQ(none.experts, 0);
  const ExpertCoverage some = expert_coverage({{0, 511, 512}, {}, {9000, 1, 700}});
  EXPECT_EQ(some.experts, 6);
  EXPECT_EQ(some.unreached, 1);
  EXPECT_EQ(some.few, 2);
  EXPECT_EQ(some.least, 0);
  EXPECT_EQ(some.median, 512);
  EXPECT_EQ(some.most, 9000);
  EXPECT_TRUE(expert_notes(0, std::vector<int64_t>{512, 600}).empty());
  EXPECT_EQ(expert_notes(4, std::vector<int64_t>{512, 0}).at(0),
            "layer 4: no token of the calibration reached expert 1: calibrated on all tokens of the layer instead");
}

}  // namespace
}  // namespace octavo
