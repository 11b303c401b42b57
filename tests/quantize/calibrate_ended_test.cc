// Calibrated runs that come to an early end: what is kept, what is said, and what the next run makes of it.
#include <algorithm>

#include "calibrated_folder.h"
#include "checkpoint/output_folder.h"
#include "file_size_limit.h"
#include "quantize/dry_run.h"
#include "quantize/quantizer.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class Ended : public CalibratedFolder {};

// Finite weights whose products overflow: the residual stream behind the layer is infinite.
Change overflow_behind(int layer) {
  const std::string down = "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight";
  return [down](const std::string& name, std::vector<float>& values, const Shape&) {
    if (name == down) std::fill(values.begin(), values.end(), 3e38f);
  };
}

TEST_F(Ended, DamagedActivationsNameTheTextAndLeaveWhatIsFinished) {
  make(overflow_behind(0));
  QuantizeOptions rounded = options();
  rounded.calibrate->rounding = Rounding::kNearest;
  const std::string error = error_of(rounded);
  EXPECT_NE(error.find("model.layers.1.qkv_input"), std::string::npos) << error;
  EXPECT_NE(error.find("sample 0 ("), std::string::npos) << error;
  EXPECT_NE(error.find("text.txt, what begins in line 1"), std::string::npos) << error;
  EXPECT_NE(error.find("1 finished layer is kept in"), std::string::npos) << error;
  EXPECT_TRUE(fs::exists(folder_ / "refused.work"));
  // Another text is another run, and the work of the first is not thrown away unasked.
  QuantizeOptions other = rounded;
  other.calibrate->data.samples = 5;
  EXPECT_NE(error_of(other).find("another model, text, scheme or options"), std::string::npos);
}

TEST_F(Ended, WithoutAFinishedLayerNothingIsKept) {
  make([](const std::string& name, std::vector<float>& values, const Shape&) {
    if (name == "model.layers.0.input_layernorm.weight") std::fill(values.begin(), values.end(), 3e38f);
  });
  EXPECT_NE(error_of(options()).find("NaN or infinite"), std::string::npos);
  EXPECT_EQ(siblings(), (std::set<std::string>{"model", "text.txt"}));
  // And what a kill leaves before the first layer is finished does not stand in the way of another run.
  fs::remove_all(model_);
  make();
  stop_at(3, "out", options());
  EXPECT_TRUE(fs::exists(folder_ / "out.work"));
  QuantizeOptions other = options();
  other.calibrate->data.samples = 5;
  EXPECT_TRUE(run("out", other).has_value());
}

TEST_F(Ended, AFullDiskKeepsWhatIsFinished) {
  make();
  ASSERT_TRUE(run("whole", options()).has_value());
  std::optional<FileSizeLimit> full;
  QuantizeOptions limited = options();
  limited.calibrate->progress = [&](double done, double, std::string_view) {
    if (done == 35) full.emplace(100'000);  // in the second layer
  };
  const std::string error = error_of(limited, "out");
  full.reset();
  EXPECT_NE(error.find("layer-00001"), std::string::npos) << error;
  EXPECT_NE(error.find("1 finished layer is kept in"), std::string::npos) << error;
  const auto resumed = run("out", options());
  ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
  EXPECT_EQ(bytes_of("whole"), bytes_of("out"));
  EXPECT_EQ(siblings(), (std::set<std::string>{"model", "out", "text.txt", "whole"}));
}

TEST_F(Ended, NotesOfFinishedLayersAreKept) {
  make();
  QuantizeOptions clipped = options("fp8-static");
  clipped.calibrate->estimator = parse_estimator("percentile:90").value();
  const auto whole = run("whole", clipped);
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  const auto losing = [](const std::string& note) { return note.find("loses to amax") != std::string::npos; };
  EXPECT_EQ(std::count_if(whole->notes.begin(), whole->notes.end(), losing), 8);
  stop_at(40, "resumed", clipped);
  const auto resumed = run("resumed", clipped);
  ASSERT_TRUE(resumed.has_value());
  EXPECT_EQ(whole->notes, resumed->notes);
  EXPECT_EQ(bytes_of("whole", "calibration.json"), bytes_of("resumed", "calibration.json"));
}

// The KV pass behind a resumed one runs through the same weights.
TEST_F(Ended, AResumedRunCalibratesTheSameKvCache) {
  make();
  QuantizeOptions with_kv = options();
  with_kv.kv = KvCalibrateOptions{.kv = "fp8_e4m3:static"};
  ASSERT_TRUE(run("whole", with_kv).has_value());
  stop_at(40, "resumed", with_kv);
  ASSERT_TRUE(run("resumed", with_kv).has_value());
  for (const std::string file : {"model.safetensors", "octavo_kv.json"})
    EXPECT_EQ(bytes_of("whole", file), bytes_of("resumed", file)) << file;
}

TEST_F(Ended, ADryRunSeesWhatIsThere) {
  make();
  const auto estimate = [&](const QuantizeOptions& options) {
    return estimate_quantization(open_model(model_), folder_ / "out", options);
  };
  const auto fresh = estimate(options());
  ASSERT_TRUE(fresh.has_value()) << fresh.error().message();
  stop_at(40, "out", options());
  fs::create_directories(folder_ / "out.writing" / "model");
  write(folder_ / "out.writing" / "model" / "half", std::string(10'000, 'x'));
  const auto resumed = estimate(options());
  ASSERT_TRUE(resumed.has_value()) << resumed.error().message();
  const int64_t finished = WorkFolder::finished_bytes(folder_ / "out");
  EXPECT_GT(finished, 100'000);
  EXPECT_EQ(resumed->disk_bytes, fresh->disk_bytes - finished - 10'000);
  QuantizeOptions other = options();
  other.calibrate->data.samples = 5;
  const auto another = estimate(other);
  ASSERT_FALSE(another.has_value());
  EXPECT_NE(another.error().message().find("another model, text, scheme or options"), std::string::npos);
  {
    const auto busy = OutputFolder::create(model_, folder_ / "out");
    ASSERT_TRUE(busy.has_value());
    EXPECT_FALSE(estimate(options()).has_value());
  }
  const fs::path lock = folder_ / "out.work" / "lock";
  const auto held = FileLock::take(lock);
  ASSERT_TRUE(held.has_value() && *held);
  const auto at_work = estimate(options());
  ASSERT_FALSE(at_work.has_value());
  EXPECT_NE(at_work.error().message().find("another run"), std::string::npos);
  EXPECT_EQ(siblings(), (std::set<std::string>{"model", "out.work", "text.txt"}));
}

// All that lies on the disk when the last byte of the output is written.
TEST_F(Ended, TheDiskThatADryRunSays) {
  make();
  for (const bool calibrated : {true, false}) {
    QuantizeOptions chosen = options("fp8");
    if (!calibrated) chosen.calibrate.reset();
    const auto estimate = estimate_quantization(open_model(model_), folder_ / "out", chosen);
    ASSERT_TRUE(estimate.has_value()) << estimate.error().message();
    int64_t most = 0;
    const auto summary = quantize_checkpoint(open_model(model_), folder_ / "out", chosen, [&](const QuantizeProgress&) {
      int64_t bytes = 0;
      std::error_code absent;
      for (const std::string name : {"out.work", "out.writing"})
        for (const auto& entry : fs::recursive_directory_iterator(folder_ / name, absent))
          if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
      most = std::max(most, bytes);
    });
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    EXPECT_EQ(estimate->output_bytes, summary->bytes_after);
    EXPECT_NEAR(static_cast<double>(estimate->disk_bytes) / static_cast<double>(most), 1.0, 0.05) << calibrated;
    fs::remove_all(folder_ / "out");
  }
}

// A column without activations carries nothing: GPTQ rounds it, whatever its weights.
TEST_F(Ended, RowsOfZerosGoThroughGptq) {
  make([](const std::string& name, std::vector<float>& values, const Shape& shape) {
    if (name == "model.layers.0.mlp.gate_proj.weight")
      std::fill(values.begin(), values.begin() + 5 * shape[1], 0.0f);  // five of down's inputs are zero
    if (name == "model.layers.1.mlp.up_proj.weight") std::fill(values.begin(), values.end(), 0.0f);
  });
  for (const std::string scheme : {"fp8", "int8", "int4-zp"}) {
    QuantizeOptions chosen = options(scheme);
    if (scheme == "int4-zp") chosen.plan.overrides = {{"down_proj", "int4-g32-zp"}, {"q_proj", "int4-g32"}};
    const auto summary = run(scheme, chosen);
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    const Checkpoint out = open_model(folder_ / scheme);
    for (const LinearModule& module : out.config().linear_modules()) {
      const auto linear = out.linear(module.name);
      ASSERT_TRUE(linear.has_value()) << linear.error().message();
      if (!linear->format.scaled()) continue;
      const std::vector<float> values = dequantize(linear->view());
      for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << scheme << " " << module.name;
      const auto zeros = [&](size_t count) {
        return std::all_of(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count),
                           [](float value) { return value == 0.0f; });
      };
      EXPECT_TRUE(module.name != "model.layers.0.mlp.gate_proj" || zeros(5 * 320)) << scheme;
      EXPECT_TRUE(module.name != "model.layers.1.mlp.up_proj" || zeros(values.size())) << scheme;
    }
  }
}

}  // namespace
}  // namespace octavo
