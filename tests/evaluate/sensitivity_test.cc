#include "evaluate/sensitivity.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/random.h"
#include "evaluate/compare.h"
#include "evaluate/item_log.h"
#include "quantize/quantize_checkpoint.h"
#include "support/test_models.h"

namespace octavo {
namespace {

std::string random_text() {
  std::string text;
  Random random(11);
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + random.below(26));
  return text;
}

SensitivityOptions options_of() {
  SensitivityOptions options{.schemes = {"fp8", "int4"}, .kv = {"fp8_e4m3", "int8"}};
  options.windows = {.context = 150, .windows = 3};
  options.threads = 1;
  return options;
}

// The base's plan with an entry's one change, by hand.
PrecisionPlan changed(const ModelConfig& config, const SensitivityEntry& entry) {
  PrecisionPlan plan = *make_plan(config, PlanRequest{.scheme = "bf16"});
  if (entry.role == kKeyCache) plan.kv[static_cast<size_t>(entry.layer)].k = *kv_format(entry.scheme);
  if (entry.role == kValueCache) plan.kv[static_cast<size_t>(entry.layer)].v = *kv_format(entry.scheme);
  for (const LinearModule& module : config.linear_modules())
    if (module.layer == entry.layer && role_name(module.role) == entry.role)
      plan.linears[module.name] = {(*find_scheme(entry.scheme))->weight, (*find_scheme(entry.scheme))->activation, ""};
  return plan;
}

TEST(Sensitivity, EveryEntryIsTheComparisonOfItsPlanToTheLastBit) {
  for (const std::string name : {"llama_untied_hd64", "qwen3_qk_norm", "mistral_sliding", "qwen3_moe"}) {
    const TinyModelFolder folder(name);
    const std::string text = random_text();
    const auto measured = measure_sensitivity(folder.path(), text, options_of());
    ASSERT_TRUE(measured.has_value()) << measured.error().message();
    const auto base = load_test_model(folder.path(), "bf16");
    const auto layers = static_cast<size_t>(base->config().num_layers);
    ASSERT_EQ(measured->entries.size(), layers * (7 * 2 + 2 * 2) + 2);
    EXPECT_EQ(measured->base_perplexity, perplexity(*base, text, options_of().windows)->perplexity);
    EXPECT_EQ(measured->tokens, 450);
    for (size_t i = 0; i < measured->entries.size(); i += name == "llama_untied_hd64" ? 1 : 5) {
      const SensitivityEntry& entry = measured->entries[i];
      ModelOptions options{.exact_plan = changed(base->config(), entry), .threads = 1};
      const auto candidate = Model::load(folder.path(), options);
      ASSERT_TRUE(candidate.has_value());
      const auto direct = compare(*base, **candidate, text, options_of().windows);
      ASSERT_TRUE(direct.has_value());
      const std::string which = fmt::format("{}: layer {} {} {}", name, entry.layer, entry.role, entry.scheme);
      EXPECT_EQ(entry.kl, direct->kl_mean) << which;
      EXPECT_EQ(entry.perplexity_change, direct->perplexity_change()) << which;
      EXPECT_EQ(entry.perplexity_change_error, direct->perplexity_change_standard_error()) << which;
      EXPECT_GT(entry.kl, 0) << which;
      EXPECT_GT(entry.output_error, 0) << which;
      EXPECT_LT(entry.bytes, entry.base_bytes) << which;
    }
  }
}

TEST(Sensitivity, AnotherBaseIsChangedTensorByTensorToo) {
  const TinyModelFolder folder("llama_untied_hd64");
  SensitivityOptions options = options_of();
  options.base = "fp8";
  options.schemes = {"bf16"};
  options.kv = {"fp8_e4m3", "bf16"};
  const auto measured = measure_sensitivity(folder.path(), random_text(), options);
  ASSERT_TRUE(measured.has_value()) << measured.error().message();
  // Neither the head, which is BF16 already, nor the cache's own format.
  EXPECT_EQ(measured->entries.size(), static_cast<size_t>(measured->model.layers) * (7 + 2));
  for (const SensitivityEntry& entry : measured->entries) {
    EXPECT_EQ(entry.scheme, "bf16");
    EXPECT_GT(entry.kl, 0);
    EXPECT_GT(entry.bytes, entry.base_bytes);
  }
}

TEST(Sensitivity, SpilledStatesAndThreadsChangeNothing) {
  const TinyModelFolder folder("llama_untied_hd64");
  const TestFolder spill;
  SensitivityOptions options = options_of();
  const auto held = measure_sensitivity(folder.path(), random_text(), options);
  options.memory_limit = 0;
  options.spill_folder = spill.path();
  options.threads = 2;
  const auto spilled = measure_sensitivity(folder.path(), random_text(), options);
  ASSERT_TRUE(held.has_value() && spilled.has_value());
  EXPECT_EQ(sensitivity_text(*held), sensitivity_text(*spilled));
  EXPECT_TRUE(std::filesystem::is_empty(spill.path()));
}

TEST(Sensitivity, GoesOnFromItsLogWithTheSameResult) {
  const TinyModelFolder folder("llama_untied_hd64");
  const TestFolder out;
  SensitivityOptions options = options_of();
  options.log = out / "run.log";
  const auto whole = measure_sensitivity(folder.path(), random_text(), options);
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  std::ifstream file(options.log, std::ios::binary);
  const std::string log((std::istreambuf_iterator<char>(file)), {});
  // Ended after any number of bytes past the first line; and the last line is cut.
  for (const double share : {0.1, 0.5, 0.8, 0.99, 1.0}) {
    const size_t first = log.find('\n') + 1;
    out.write("run.log", log.substr(0, first + static_cast<size_t>(share * static_cast<double>(log.size() - first))));
    const auto again = measure_sensitivity(folder.path(), random_text(), options);
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(sensitivity_text(*again), sensitivity_text(*whole)) << share;
  }
  // Finished entries are taken, not measured again: a mark in the log comes back.
  std::string marked = log;
  const size_t at = marked.find("\"output_error\":") + 15;
  marked.replace(at, marked.find(',', at) - at, "0.75");
  out.write("run.log", marked);
  EXPECT_EQ(measure_sensitivity(folder.path(), random_text(), options)->entries[0].output_error, 0.75);
  // Another text is another run.
  const auto other = measure_sensitivity(folder.path(), random_text() + random_text(), options);
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().what.find("another run"), std::string::npos);
}

// Outlier channels are BF16 columns beside the codes: of the base and of what is lowered.
TEST(Sensitivity, BytesCountOutlierChannels) {
  const TinyModelFolder folder("llama_untied_hd64");
  const TestFolder out;
  out.write("text.txt", random_text() + "\n\n" + random_text());
  QuantizeOptions quantize{.plan = {.scheme = "fp8"}, .threads = 1};
  quantize.calibrate.emplace();
  quantize.calibrate->data = {.sources = {{out / "text.txt", 1}}, .samples = 4, .length = 64, .seed = 3};
  quantize.calibrate->isa = best_isa();
  quantize.outliers = 0.05;
  const auto done = quantize_checkpoint(*Checkpoint::open(folder.path()), out / "outliers", quantize);
  ASSERT_TRUE(done.has_value()) << done.error().message();
  SensitivityOptions options = options_of();
  options.kv = {};
  options.schemes = {"fp8"};
  const auto measured = measure_sensitivity(out / "outliers", random_text(), options);
  ASSERT_TRUE(measured.has_value()) << measured.error().message();
  const Checkpoint checkpoint = *Checkpoint::open(out / "outliers");
  int64_t all = 0;
  for (const LinearModule& module : checkpoint.config().linear_modules()) {
    const int64_t outliers = checkpoint.stored_plan().linear(module.name).outliers;
    all += module.rows * (module.cols + outliers) * 2;
    for (const SensitivityEntry& entry : measured->entries) {
      if (entry.layer != module.layer || entry.role != role_name(module.role)) continue;
      if (module.layer >= 0) {
        EXPECT_GT(outliers, 0) << module.name;
      }
      EXPECT_EQ(entry.base_bytes, module.rows * (module.cols + outliers) * 2) << module.name;
      EXPECT_EQ(entry.bytes, module.rows * (module.cols + 4 + 2 * outliers)) << module.name;
    }
  }
  EXPECT_EQ(measured->base_bytes, all);
}

TEST(Sensitivity, RefusesSchemesThatItCannotMeasure) {
  const TinyModelFolder folder("llama_untied_hd64");
  SensitivityOptions options = options_of();
  for (const auto& [scheme, what] : std::map<std::string, std::string>{
           {"bf16", "the base's own"}, {"fp8-static", "calibrated"}, {"fp7", "unknown quantization scheme"}}) {
    options.schemes = {scheme};
    const auto result = measure_sensitivity(folder.path(), random_text(), options);
    ASSERT_FALSE(result.has_value()) << scheme;
    EXPECT_NE(result.error().what.find(what), std::string::npos) << result.error().message();
  }
  EXPECT_FALSE(measure_sensitivity(folder.path(), "short", options_of()).has_value());
  const auto one = measure_sensitivity(folder.path(), random_text().substr(0, 299), options_of());
  ASSERT_FALSE(one.has_value());
  EXPECT_NE(one.error().what.find("one window"), std::string::npos);
}

TEST(SensitivityFile, ReadsWhatItWritesAndRefusesTheRest) {
  Sensitivity s{.model = {"LlamaForCausalLM", 2, 64, 128, 256},
                .base = "bf16",
                .tokens = 64,
                .context = 32,
                .base_perplexity = 19.4929874,
                .base_bytes = 12345};
  s.entries = {{.layer = 1,
                .role = "q_proj",
                .scheme = "int4",
                .perplexity_change = -0.0003,
                .perplexity_change_error = 0.0004,
                .kl = 1.0 / 3,
                .output_error = 1e-9,
                .bytes = 5,
                .base_bytes = 9},
               {.layer = -1, .role = "lm_head", .scheme = "fp8", .kl = 0.005, .bytes = 5, .base_bytes = 9},
               {.layer = 0, .role = "k_cache", .scheme = "fp8_e4m3", .kl = 1e-5, .bytes = 5, .base_bytes = 9}};
  const std::string text = sensitivity_text(s);
  const auto read = parse_sensitivity(text, "s.json");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(sensitivity_text(*read), text);
  EXPECT_EQ(read->entries[0].kl, 1.0 / 3);
  struct Case {
    std::string what, with, named;
  };
  for (const Case& c :
       {Case{"\"octavo_sensitivity\": 1", "\"octavo_sensitivity\": 3", "octavo_sensitivity"},
        Case{"\"q_proj\"", "\"x_proj\"", "role"}, Case{"\"int4\"", "\"int5\"", "scheme"},
        Case{"\"fp8_e4m3\"", "\"fp8-block\"", "scheme"}, Case{"\"layer\": 1", "\"layer\": 2", "layer"},
        Case{"\"layer\": 1", "\"layer\": -1", "role"}, Case{"\"bytes\": 5", "\"bytes\": 0", "bytes"},
        Case{"\"kl\": 0.005", "\"kl\": -0.005", "kl"}, Case{"\"context\": 32", "\"context\": \"\"", "context"},
        Case{"\"entries\": [", "\"things\": [", "entries"}}) {
    std::string broken = text;
    const size_t at = broken.find(c.what);
    ASSERT_NE(at, std::string::npos) << c.what;
    const auto refused = parse_sensitivity(broken.replace(at, c.what.size(), c.with), "s.json");
    ASSERT_FALSE(refused.has_value()) << c.with;
    EXPECT_NE(refused.error().what.find("\"" + c.named + "\""), std::string::npos) << refused.error().message();
  }
}

TEST(SensitivityFile, ClassesLeanOnKlAndOnChangesBeyondTheirNoise) {
  SensitivityEntry entry{.perplexity_change = 0.004, .perplexity_change_error = 0.003, .kl = 0.0002};
  EXPECT_EQ(entry.verdict(), SensitivityClass::kFree);  // the change is noise
  entry.perplexity_change_error = 0.0005;
  EXPECT_EQ(entry.verdict(), SensitivityClass::kWatch);
  entry = {.perplexity_change = -0.02, .perplexity_change_error = 0.001, .kl = 0.012};
  EXPECT_EQ(entry.verdict(), SensitivityClass::kKeepWide);  // a gain on one text is no gain
}

}  // namespace
}  // namespace octavo
