// Quantization with calibration from end to end: the same bytes whatever happens on the way, and named errors.
#include "quantize/calibrate.h"

#include <algorithm>
#include <set>

#include "calibrated_folder.h"
#include "quantize/dry_run.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class Calibrate : public CalibratedFolder {};

TEST_F(Calibrate, GptqBeatsRoundingOnEverySchemeAndReadsBack) {
  make();
  for (const std::string scheme : {"fp8", "fp8-block", "fp8-tensor", "fp8-static", "int8"}) {
    const auto summary = run(scheme, options(scheme));
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    EXPECT_EQ(summary->quantized.size(), 14u);
    for (const auto& tensor : summary->quantized) {
      EXPECT_GT(tensor.objective_ratio, 0) << tensor.name;
      EXPECT_LT(tensor.objective_ratio, 1) << tensor.name;
    }
    const Checkpoint source = open_model(model_), out = open_model(folder_ / scheme);
    EXPECT_EQ(out.notes(), std::vector<std::string>{}) << scheme;
    for (const LinearModule& module : out.config().linear_modules()) {
      const auto linear = out.linear(module.name);
      ASSERT_TRUE(linear.has_value()) << linear.error().message();
      EXPECT_EQ(linear->input_scale.has_value(), scheme == "fp8-static" && module.role != Role::kHead);
    }
    EXPECT_FALSE(fs::exists(WorkFolder::path_for(folder_ / scheme)));
  }
}

TEST_F(Calibrate, TheSameBytesForAnyThreadsSpilledOrInterrupted) {
  make();
  ASSERT_TRUE(run("plain", options()).has_value());
  QuantizeOptions other = options();
  other.threads = 3;
  other.calibrate->memory_limit = 0;
  ASSERT_TRUE(run("spilled", other).has_value());
  EXPECT_EQ(bytes_of("plain"), bytes_of("spilled"));

  // Ended in the middle of a layer: the next call finds what is finished.
  for (const double at : {3.0, 40.0, 55.0}) stop_at(at, "resumed", options());
  EXPECT_TRUE(fs::exists(WorkFolder::path_for(folder_ / "resumed") / "layer-00000.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "resumed"));
  const auto resumed = run("resumed", options());
  ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
  EXPECT_EQ(bytes_of("plain"), bytes_of("resumed"));
  EXPECT_EQ(read_statistics(folder_ / "plain" / kStatisticsName).value(),
            read_statistics(folder_ / "resumed" / kStatisticsName).value());
  EXPECT_FALSE(fs::exists(WorkFolder::path_for(folder_ / "resumed")));
}

// A kill while a finished run removes its work leaves files of no run.
TEST_F(Calibrate, WorkWithoutItsRunsNameIsNotGoneOnWith) {
  const fs::path work = WorkFolder::path_for(folder_ / "killed");
  fs::create_directories(work);
  ASSERT_TRUE(write_text_file(work / "layer-00000.safetensors", "its statistics are gone already").has_value());
  const auto next = WorkFolder::open(folder_ / "killed", "run");
  ASSERT_TRUE(next.has_value()) << next.error().message();
  EXPECT_FALSE(next->has(0));
  EXPECT_EQ(next->finished(), 0);
}

TEST_F(Calibrate, TheWorkOfAnotherRunIsNotTaken) {
  make();
  stop_at(40, "out", options());
  QuantizeOptions other = options();
  other.calibrate->data.seed = 4;
  const auto refused = run("out", other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("another model, text, scheme or options"), std::string::npos);
  // Two runs at once: the second is refused while the first holds the folder.
  const auto held = WorkFolder::open(folder_ / "busy", "run");
  ASSERT_TRUE(held.has_value());
  const auto second = WorkFolder::open(folder_ / "busy", "run");
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message().find("another run"), std::string::npos);
}

TEST_F(Calibrate, StaticScalesComeFromTheStatistics) {
  make();
  ASSERT_TRUE(run("out", options("fp8-static")).has_value());
  const Checkpoint out = open_model(folder_ / "out");
  EXPECT_EQ(read_config(folder_ / "out")["quantization_config"]["activation_scheme"], "static");
  const StatisticsMap statistics = read_statistics(folder_ / "out" / kStatisticsName).value();
  const float amax = statistics.at("model.layers.1.down_input").amax();
  EXPECT_EQ(out.linear("model.layers.1.mlp.down_proj")->input_scale,
            scale_from_amax(amax, tensor_wide_format(ElementType::kE4m3)));
  EXPECT_EQ(statistics.at("model.layers.0.qkv_input").histogram().finite(), 6u * 48 * 320);
  EXPECT_EQ(statistics.at("model.layers.0.k_cache.0").channels(), 64);
  QuantizeOptions clipped = options("fp8-static");
  clipped.dialect = "compressed-tensors";
  clipped.calibrate->estimator = parse_estimator("percentile:90").value();
  const auto summary = run("clipped", clipped);
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  EXPECT_LT(*open_model(folder_ / "clipped").linear("model.layers.1.mlp.down_proj")->input_scale,
            *out.linear("model.layers.1.mlp.down_proj")->input_scale);
  const auto says = [](const std::string& note) { return note.find("loses to amax") != std::string::npos; };
  EXPECT_TRUE(std::any_of(summary->notes.begin(), summary->notes.end(), says));
  QuantizeOptions without = options("fp8-static");
  without.calibrate.reset();
  EXPECT_NE(error_of(without).find("--calibrate"), std::string::npos);
}

TEST_F(Calibrate, RescaleKeepsFormatsAndNamesDrift) {
  make();
  ASSERT_TRUE(run("old", options("fp8-static")).has_value());
  fs::remove_all(model_);
  make([](const std::string& name, std::vector<float>& values, const Shape& shape) {  // after fine-tuning
    const bool drifts = name == "model.layers.1.post_attention_layernorm.weight";
    for (float& value : values) value *= drifts ? 2.0f : shape.size() == 2 ? 1.01f : 1.0f;
  });
  const Checkpoint source = open_model(model_);
  QuantizeOptions rescale = options("");
  rescale.calibrate->rounding = Rounding::kNearest;
  rescale.calibrate->data.samples = 3;
  auto earlier = read_earlier_scales(folder_ / "old", source.config());
  ASSERT_TRUE(earlier.has_value()) << earlier.error().message();
  rescale.earlier = *earlier;
  const auto summary = run("new", rescale);
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  const Checkpoint old = open_model(folder_ / "old"), out = open_model(folder_ / "new");
  EXPECT_EQ(out.dialect(), old.dialect());
  const auto roles = {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"};
  for (const std::string name : roles) {
    EXPECT_EQ(out.stored_plan().linear(name), old.stored_plan().linear(name));
    EXPECT_EQ(out.linear(name)->input_scale, old.linear(name)->input_scale);
    EXPECT_NEAR(out.linear(name)->scales[0] / old.linear(name)->scales[0], 1.01, 0.01);
  }
  const auto named = [&](const std::string& text) {
    return std::count_if(summary->notes.begin(), summary->notes.end(),
                         [&](const std::string& note) { return note.find(text) != std::string::npos; });
  };
  EXPECT_EQ(named("model.layers.1.gate_up_input: activations drifted"), 1);
  EXPECT_EQ(named("model.layers.0.qkv_input: activations drifted"), 0);
  EXPECT_EQ(named("calibrate anew"), 1);

  // Statistics alone give static scales too, and what they lack is named.
  QuantizeOptions from_file{.plan = {.scheme = "fp8-static"}, .threads = 1};
  from_file.earlier = read_earlier_scales(folder_ / "old" / kStatisticsName, source.config()).value();
  ASSERT_TRUE(run("from_file", from_file).has_value());
  for (const std::string name : roles)
    EXPECT_EQ(open_model(folder_ / "from_file").linear(name)->input_scale, old.linear(name)->input_scale);
  from_file.earlier->statistics.erase("model.layers.0.o_input");
  EXPECT_NE(error_of(from_file).find("model.layers.0.o_input"), std::string::npos);
}

TEST_F(Calibrate, DryRunPredictsAndLeavesNothing) {
  make();
  const auto estimate = estimate_quantization(open_model(model_), folder_ / "out", options());
  ASSERT_TRUE(estimate.has_value()) << estimate.error().message();
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_.path())) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"model", "text.txt"}));
  EXPECT_EQ(estimate->tokens, 6 * 48);
  EXPECT_GT(estimate->seconds, 0);
  EXPECT_EQ(estimate->spilled_bytes, 0);
  const auto summary = run("out", options());
  ASSERT_TRUE(summary.has_value());
  EXPECT_EQ(estimate->output_bytes, summary->bytes_after);
  QuantizeOptions spilling = options();
  spilling.calibrate->memory_limit = 0;
  const auto spilled = estimate_quantization(open_model(model_), folder_ / "other", spilling);
  ASSERT_TRUE(spilled.has_value());
  EXPECT_EQ(spilled->spilled_bytes, 6 * 48 * (320 * 4 + 256 * 4));  // residual stream, and o_proj's inputs, FP32
  EXPECT_NE(error_of([&] {
              QuantizeOptions bad = options();
              bad.plan.scheme = "nonsense";
              return bad;
            }()),
            "");
}

TEST_F(Calibrate, DamagedWeightsAreNamed) {
  make([](const std::string& name, std::vector<float>& values, const Shape&) {
    if (name == "model.layers.1.mlp.up_proj.weight") values[321] = NAN;
  });
  const std::string error = error_of(options());
  EXPECT_NE(error.find("model.layers.1.mlp.up_proj.weight, row 1, column 1"), std::string::npos) << error;
}

}  // namespace
}  // namespace octavo
