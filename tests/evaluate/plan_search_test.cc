#include "evaluate/plan_search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace octavo {
namespace {

ModelConfig config_of(int64_t layers) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.num_layers = layers;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.vocab_size = 256;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 32;
  return config;
}

// Costs drawn at random: more for fewer bits.
Sensitivity sensitivity_of(const ModelConfig& config, uint64_t seed) {
  Random random(seed);
  Sensitivity s{.model = config.shape(), .base = "bf16", .tokens = 64, .context = 32, .base_perplexity = 20};
  const auto add = [&](int layer, std::string role, std::string scheme, int64_t bytes, int64_t base, double scale) {
    s.entries.push_back({.layer = layer,
                         .role = std::move(role),
                         .scheme = std::move(scheme),
                         .perplexity_change = 0.001,
                         .perplexity_change_error = 0.001,
                         .kl = scale * std::exp(random.normal()),
                         .output_error = 0.1,
                         .bytes = bytes,
                         .base_bytes = base});
  };
  for (const LinearModule& module : config.linear_modules()) {
    const int64_t base = module.rows * module.cols * 2;
    s.base_bytes += base;
    const std::string role(role_name(module.role));
    add(module.layer, role, "fp8", base / 2 + module.rows * 4, base, 1e-3);
    add(module.layer, role, "int4", base / 4 + module.rows * 2, base, 1e-2);
    if (module.role != Role::kDown) continue;
    add(module.layer, std::string(kKeyCache), "fp8_e4m3", 36, 68, 1e-3);
    add(module.layer, std::string(kValueCache), "fp8_e4m3", 36, 68, 1e-3);
  }
  return s;
}

double kl_of(const Sensitivity& s, int layer, std::string_view role, std::string_view scheme) {
  for (const SensitivityEntry& e : s.entries)
    if (e.layer == layer && e.role == role && e.scheme == scheme)
      return layer < 0 ? e.kl : e.kl - kl_floors(s)[static_cast<size_t>(layer)];
  return scheme == "bf16" ? 0 : NAN;
}

int64_t bytes_of(const Sensitivity& s, int layer, std::string_view role, std::string_view scheme) {
  for (const SensitivityEntry& e : s.entries)
    if (e.layer == layer && e.role == role && (e.scheme == scheme || scheme == "bf16"))
      return scheme == "bf16" ? e.base_bytes : e.bytes;
  return 0;
}

// Every plan of one layer: 3 x 3 x 3 x 3 choices.
double best_by_trying(const Sensitivity& s, int64_t budget) {
  const std::vector<std::vector<std::string>> units = {
      {"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"}};
  const std::string schemes[] = {"bf16", "fp8", "int4"};
  double best = INFINITY;
  for (int code = 0; code < 81; ++code) {
    int64_t bytes = bytes_of(s, -1, "lm_head", "bf16");
    double kl = 0;
    for (int u = 0, rest = code; u < 4; ++u, rest /= 3)
      for (const std::string& role : units[static_cast<size_t>(u)]) {
        bytes += bytes_of(s, 0, role, schemes[rest % 3]);
        kl += kl_of(s, 0, role, schemes[rest % 3]);
      }
    if (bytes <= budget) best = std::min(best, kl);
  }
  return best;
}

TEST(PlanSearch, FindsWhatTryingEveryPlanFinds) {
  const ModelConfig config = config_of(1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Sensitivity s = sensitivity_of(config, seed);
    const auto search = PlanSearch::create(s, config, {}, "s.json");
    ASSERT_TRUE(search.has_value()) << search.error().message();
    for (int i = 0; i <= 40; ++i) {
      const int64_t budget = search->smallest() + (search->largest() - search->smallest()) * i / 40;
      const auto found = search->best(budget);
      ASSERT_TRUE(found.has_value());
      EXPECT_LE(found->bytes, budget);
      EXPECT_NEAR(found->kl, best_by_trying(s, budget), 1e-15) << seed << " " << i;
    }
    EXPECT_EQ(search->best(search->largest())->kl, 0);
  }
}

TEST(PlanSearch, MoreBytesNeverCostMoreAndBeatUniformSchemes) {
  const ModelConfig config = config_of(30);
  const Sensitivity s = sensitivity_of(config, 7);
  const auto search = PlanSearch::create(s, config, {.depth = 100}, "s.json");
  ASSERT_TRUE(search.has_value());
  const std::vector<PlanPoint> points = search->pareto(50);
  ASSERT_GT(points.size(), 40u);
  for (size_t i = 1; i < points.size(); ++i) EXPECT_LE(points[i].kl, points[i - 1].kl + 1e-12) << i;
  ASSERT_EQ(search->uniform().size(), 3u);
  for (const auto& [scheme, point] : search->uniform()) {
    const auto found = search->best(point.bytes);
    ASSERT_TRUE(found.has_value()) << scheme;
    EXPECT_LE(found->kl, point.kl) << scheme;
  }
}

TEST(PlanSearch, ThePlanSaysWhatThePointCounts) {
  const ModelConfig config = config_of(3);
  const Sensitivity s = sensitivity_of(config, 3);
  const auto search = PlanSearch::create(s, config, {.depth = 1000}, "s.json");
  const auto point = search->best((search->smallest() + search->largest()) / 2);
  const PlanFile file = search->plan(*point);
  const auto plan = make_plan(config.linear_modules(), config.shape(), file);
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  int64_t bytes = 0;
  double kl = 0;
  std::map<std::string, std::string> scheme;
  for (const auto& [name, chosen] : file.linears) scheme[name] = chosen;
  for (const LinearModule& module : config.linear_modules()) {
    bytes += bytes_of(s, module.layer, role_name(module.role), scheme[module.name]);
    kl += kl_of(s, module.layer, role_name(module.role), scheme[module.name]);
  }
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    EXPECT_EQ(scheme[prefix + "q_proj"], scheme[prefix + "k_proj"]);
    EXPECT_EQ(scheme[prefix + "q_proj"], scheme[prefix + "v_proj"]);
    const KvNames& kv = file.kv[static_cast<size_t>(layer)];
    bytes += 1000 * (bytes_of(s, layer, kKeyCache, kv.k) + bytes_of(s, layer, kValueCache, kv.v));
    kl += kl_of(s, layer, kKeyCache, kv.k) + kl_of(s, layer, kValueCache, kv.v);
  }
  EXPECT_EQ(scheme["lm_head"], "bf16");
  EXPECT_EQ(bytes, point->bytes);
  EXPECT_NEAR(kl, point->kl, 1e-12);
}

TEST(PlanSearch, FusedLayersMayPartAndTheHeadMayBeLoweredWhenAsked) {
  const ModelConfig config = config_of(2);
  const Sensitivity s = sensitivity_of(config, 4);
  const auto fused = PlanSearch::create(s, config, {}, "s.json"),
             split = PlanSearch::create(s, config, {.split_fused = true}, "s.json"),
             head = PlanSearch::create(s, config, {.lower_head = true}, "s.json");
  EXPECT_EQ(fused->smallest(), split->smallest());
  EXPECT_LT(head->smallest(), fused->smallest());
  const int64_t middle = (fused->smallest() + fused->largest()) / 2;
  EXPECT_LT(split->best(middle)->kl, fused->best(middle)->kl);
}

TEST(PlanSearch, RefusesWhatItCannotDo) {
  const ModelConfig config = config_of(2);
  Sensitivity s = sensitivity_of(config, 1);
  const auto other = PlanSearch::create(s, config_of(3), {}, "s.json");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().found, "layers 2");
  EXPECT_EQ(PlanSearch::create(s, config, {.schemes = {"nvfp4"}}, "s.json").error().expected, "nvfp4");
  const auto search = PlanSearch::create(s, config, {}, "s.json");
  const auto small = search->best(search->smallest() - 1);
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().where, "--budget");
  // Bits per weight say nothing of the cache that --depth counts.
  const auto deep = PlanSearch::create(s, config, {.depth = 100}, "s.json");
  ASSERT_TRUE(deep.has_value()) << deep.error().message();
  const PlanBudget bits{.kind = PlanBudget::Kind::kBitsPerWeight, .value = 5.5};
  EXPECT_EQ(deep->bytes_of(bits, 0).error().where, "--depth, --budget");
  EXPECT_EQ(deep->bytes_of({.value = 1e6}, 0).value(), 1'000'000);
  const auto within = search->best(search->bytes_of(bits, 0).value());
  ASSERT_TRUE(within.has_value());
  EXPECT_LE(within->bits_per_weight, 5.5);
  std::erase_if(s.entries, [](const SensitivityEntry& e) { return e.role == kKeyCache; });
  EXPECT_FALSE(PlanSearch::create(s, config, {.depth = 5}, "s.json").has_value());
  s.entries.clear();
  EXPECT_FALSE(PlanSearch::create(s, config, {}, "s.json").has_value());
}

TEST(PlanSearch, FloorsFallWithTheLayersAndAreNotCounted) {
  const ModelConfig config = config_of(4);
  Sensitivity s = sensitivity_of(config, 5);
  for (SensitivityEntry& e : s.entries) e.kl += 1;  // as if each change made another rounding of everything
  const Sensitivity plain = sensitivity_of(config, 5);
  const std::vector<double> floors = kl_floors(s), plain_floors = kl_floors(plain);
  for (size_t i = 0; i < floors.size(); ++i) {
    EXPECT_NEAR(floors[i], plain_floors[i] + 1, 1e-12);
    EXPECT_LE(floors[i], floors[i == 0 ? 0 : i - 1]);
  }
  for (const SensitivityEntry& e : s.entries) EXPECT_GE(e.kl, e.layer < 0 ? 0 : floors[static_cast<size_t>(e.layer)]);
  const auto with = PlanSearch::create(s, config, {}, "s.json"),
             without = PlanSearch::create(plain, config, {}, "s.json");
  const int64_t middle = (with->smallest() + with->largest()) / 2;
  EXPECT_NEAR(with->best(middle)->kl, without->best(middle)->kl, 1e-9);
}

TEST(PlanBudget, Units) {
  EXPECT_EQ(parse_budget("5.5bpw")->value, 5.5);
  EXPECT_EQ(parse_budget("90MB")->value, 90e6);
  EXPECT_EQ(parse_budget("1.5GB")->value, 1.5e9);
  EXPECT_EQ(parse_budget("4.5ms")->kind, PlanBudget::Kind::kMilliseconds);
  for (const char* text : {"", "5", "bpw", "-1MB", "0ms", "1 MB", "nanMB", "1e400GB", "5.5bpws"})
    EXPECT_FALSE(parse_budget(text).has_value()) << text;
}

}  // namespace
}  // namespace octavo
