// What an earlier quantization hands to the next one.
#include "quantize/scales_from.h"

#include <algorithm>

#include "calibrated_folder.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class ScalesFrom : public CalibratedFolder {
 protected:
  QuantizeOptions from(const std::string& name) {
    auto earlier = read_earlier_scales(folder_ / name, open_model(model_).config());
    if (!earlier) ADD_FAILURE() << earlier.error().message();
    QuantizeOptions options{.plan = {.scheme = ""}, .threads = 2};
    options.earlier = std::move(*earlier);
    return options;
  }
};

struct Way {
  std::string scheme, dialect;
};

// The same weights with an earlier folder's formats are that folder.
TEST_F(ScalesFrom, EveryDialectThatIsWrittenIsTaken) {
  make();
  for (const Way& way : {Way{"fp8", "compressed-tensors"}, Way{"fp8-block", "fp8"}, Way{"fp8-tensor", "fp8"},
                         Way{"nvfp4", "modelopt"}, Way{"mxfp8", "modelopt"}, Way{"fp8", "modelopt"},
                         Way{"int4", "gptq"}, Way{"int4-zp", "gptq"}, Way{"int4-g32-zp", "compressed-tensors"}}) {
    const std::string old = way.scheme + " " + way.dialect, copy = "again " + old;
    ASSERT_TRUE(run(old, {.plan = {.scheme = way.scheme}, .dialect = way.dialect, .threads = 2}).has_value());
    const auto summary = run(copy, from(old));
    ASSERT_TRUE(summary.has_value()) << old << "\n" << summary.error().message();
    EXPECT_EQ(summary->dialect, way.dialect);
    EXPECT_EQ(bytes_of(old), bytes_of(copy)) << old;
    EXPECT_EQ(read_config(folder_ / old), read_config(folder_ / copy)) << old;
  }
}

TEST_F(ScalesFrom, ModelOptHasStaticFp8) {
  make();
  QuantizeOptions chosen = options("fp8-static");
  chosen.dialect = "modelopt";
  chosen.calibrate->rounding = Rounding::kNearest;
  const auto made = run("old", chosen);
  ASSERT_TRUE(made.has_value()) << made.error().message();
  const Json config = read_config(folder_ / "old")["quantization_config"];
  EXPECT_EQ(config["quant_algo"], "FP8");
  EXPECT_EQ(config["config_groups"]["group_0"]["input_activations"]["dynamic"], false);
  // As the fp8 dialect stores it, under the same names.
  chosen.dialect = "fp8";
  ASSERT_TRUE(run("fp8", chosen).has_value());
  EXPECT_EQ(bytes_of("old"), bytes_of("fp8"));
  const Checkpoint old = open_model(folder_ / "old"), fp8 = open_model(folder_ / "fp8");
  for (const LinearModule& module : old.config().linear_modules()) {
    EXPECT_EQ(old.stored_plan().linear(module.name), fp8.stored_plan().linear(module.name)) << module.name;
    EXPECT_EQ(old.linear(module.name)->input_scale, fp8.linear(module.name)->input_scale);
  }
  ASSERT_TRUE(run("again", from("old")).has_value());
  EXPECT_EQ(bytes_of("old"), bytes_of("again"));
}

TEST_F(ScalesFrom, TheKvCacheStays) {
  make();
  for (const std::string kv : {"fp8_e4m3:tensor", "int8:channel:static", "fp8_e4m3:static:wide4:skip1"}) {
    QuantizeOptions chosen = options("int8");
    chosen.calibrate->rounding = Rounding::kNearest;
    chosen.kv = KvCalibrateOptions{.kv = kv};
    ASSERT_TRUE(run("old " + kv, chosen).has_value());
    const auto summary = run("new " + kv, from("old " + kv));
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    EXPECT_EQ(bytes_of("old " + kv), bytes_of("new " + kv)) << kv;
    EXPECT_EQ(bytes_of("old " + kv, "octavo_kv.json"), bytes_of("new " + kv, "octavo_kv.json")) << kv;
    EXPECT_EQ(read_config(folder_ / ("old " + kv)), read_config(folder_ / ("new " + kv))) << kv;
    EXPECT_EQ(open_model(folder_ / ("old " + kv)).stored_plan().kv,
              open_model(folder_ / ("new " + kv)).stored_plan().kv);
  }
  // Of another tool's folder, which has the tensors alone.
  fs::remove(folder_ / "old fp8_e4m3:tensor" / "octavo_kv.json");
  ASSERT_TRUE(run("tensors", from("old fp8_e4m3:tensor")).has_value());
  EXPECT_FALSE(fs::exists(folder_ / "tensors" / "octavo_kv.json"));
  EXPECT_EQ(bytes_of("old fp8_e4m3:tensor"), bytes_of("tensors"));
  EXPECT_EQ(read_config(folder_ / "old fp8_e4m3:tensor"), read_config(folder_ / "tensors"));
  // And --kv makes another one.
  QuantizeOptions anew = from("old fp8_e4m3:tensor");
  anew.calibrate = options().calibrate;
  anew.calibrate->rounding = Rounding::kNearest;
  anew.kv = KvCalibrateOptions{.kv = "int8:static"};
  const auto summary = run("anew", anew);
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  EXPECT_EQ(kv_name(open_model(folder_ / "anew").stored_plan().kv[0]), "int8:static");
  EXPECT_EQ(open_model(folder_ / "anew").tensors().find("model.layers.0.self_attn.k_scale"), nullptr);
}

TEST_F(ScalesFrom, StatisticsThatNothingComesOfAreRefused) {
  make();
  ASSERT_TRUE(run("old", options("fp8-static")).has_value());
  QuantizeOptions chosen{.plan = {.scheme = "fp8"}, .threads = 1};
  chosen.earlier = read_earlier_scales(folder_ / "old" / kStatisticsName, open_model(model_).config()).value();
  EXPECT_NE(error_of(chosen).find("nothing of the statistics is used"), std::string::npos);
  // With text they are compared, with static scales they are taken.
  chosen.calibrate = options().calibrate;
  EXPECT_TRUE(run("compared", chosen).has_value());
  chosen.calibrate.reset();
  chosen.plan.scheme = "fp8-static";
  EXPECT_TRUE(run("taken", chosen).has_value());
  // Of a model of another width no place fits.
  StatisticsMap other;
  for (const auto& [place, values] : chosen.earlier->statistics) other.emplace(place, ValueStatistics(7));
  chosen.earlier->statistics = other;
  chosen.calibrate = options().calibrate;
  const std::string error = error_of(chosen);
  EXPECT_NE(error.find("statistics are of another model"), std::string::npos) << error;
}

}  // namespace
}  // namespace octavo
