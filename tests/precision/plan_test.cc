#include "precision/plan.h"

#include <gtest/gtest.h>

#include "precision/name_rule.h"

namespace octavo {
namespace {

std::vector<LinearModule> two_layers() {
  std::vector<LinearModule> modules;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    modules.push_back({p + "self_attn.q_proj", Role::kQ, layer, 256, 128});
    modules.push_back({p + "self_attn.k_proj", Role::kK, layer, 64, 128});
    modules.push_back({p + "self_attn.v_proj", Role::kV, layer, 64, 128});
    modules.push_back({p + "self_attn.o_proj", Role::kO, layer, 128, 256});
    modules.push_back({p + "mlp.gate_proj", Role::kGate, layer, 320, 128});
    modules.push_back({p + "mlp.up_proj", Role::kUp, layer, 320, 128});
    modules.push_back({p + "mlp.down_proj", Role::kDown, layer, 128, 320});
  }
  modules.push_back({"lm_head", Role::kHead, -1, 512, 128});
  return modules;
}

PrecisionPlan plan_of(const PlanRequest& request) {
  auto plan = make_plan(two_layers(), 2, request);
  EXPECT_TRUE(plan.has_value()) << plan.error().message();
  return plan.value_or(PrecisionPlan{});
}

TEST(Schemes, RowsSayWhatTheirNamesPromise) {
  struct Row {
    std::string name, weight, activation, kv;
  };
  for (const Row& row : {
           Row{"float32", "float32", "float32", "float32"},
           Row{"bf16", "bf16", "bf16", "bf16"},
           Row{"fp8", "fp8_e4m3 per row", "fp8_e4m3 per row", "fp8_e4m3 per row"},
           Row{"fp8-weight", "fp8_e4m3 per row", "bf16", "bf16"},
           Row{"fp8-block", "fp8_e4m3 per 128x128", "fp8_e4m3 per 1x128", "fp8_e4m3 per row"},
           Row{"fp8-block-ue8m0", "fp8_e4m3 per 128x128, e8m0 scales", "fp8_e4m3 per 1x128, e8m0 scales",
               "fp8_e4m3 per row"},
           Row{"fp8-tensor", "fp8_e4m3 per tensor", "fp8_e4m3 per row", "fp8_e4m3 per row"},
           Row{"fp8-static", "fp8_e4m3 per tensor", "fp8_e4m3 per tensor", "fp8_e4m3 per row"},
           Row{"int8", "int8 per row", "int8 per row", "int8 per row"},
           Row{"int4", "int4 per 1x128, float16 scales", "bf16", "bf16"},
           Row{"int4-g32", "int4 per 1x32, float16 scales", "bf16", "bf16"},
           Row{"int4-zp", "int4 per 1x128, float16 scales, zero points", "bf16", "bf16"},
           Row{"int4-g32-zp", "int4 per 1x32, float16 scales, zero points", "bf16", "bf16"},
           Row{"mxfp8", "fp8_e4m3 per 1x32, e8m0 scales", "fp8_e4m3 per 1x32, e8m0 scales", "fp8_e4m3 per row"},
           Row{"mxfp4", "fp4_e2m1 per 1x32, e8m0 scales", "bf16", "bf16"},
           Row{"nvfp4", "fp4_e2m1 per 1x16, fp8_e4m3 scales", "bf16", "bf16"},
       }) {
    const auto scheme = find_scheme(row.name);
    ASSERT_TRUE(scheme.has_value()) << row.name;
    EXPECT_EQ((*scheme)->weight.describe(), row.weight);
    EXPECT_EQ((*scheme)->activation.describe(), row.activation);
    EXPECT_EQ((*scheme)->kv.describe(), row.kv);
    EXPECT_EQ((*scheme)->activation.scale_time, row.name == "fp8-static" ? ScaleTime::kStored : ScaleTime::kDynamic);
    EXPECT_EQ((*scheme)->kv.scale_time, ScaleTime::kDynamic);
    EXPECT_EQ((*scheme)->weight.scale_time == ScaleTime::kStored, (*scheme)->weight.scaled());
  }
  EXPECT_EQ(schemes().size(), 16u) << "a scheme without a row here";
}

TEST(Schemes, UnknownNameListsTheKnownOnes) {
  const auto scheme = find_scheme("fp7");
  ASSERT_FALSE(scheme.has_value());
  EXPECT_NE(scheme.error().found.find("fp7"), std::string::npos);
  for (const Scheme& known : schemes())
    EXPECT_NE(scheme.error().expected.find(known.name), std::string::npos) << known.name;
}

TEST(Plan, SchemeCoversEveryModuleAndTheHeadStaysWide) {
  const PrecisionPlan plan = plan_of({.scheme = "fp8"});
  EXPECT_EQ(plan.linears.size(), 15u);
  EXPECT_EQ(plan.linear("model.layers.1.mlp.down_proj").weight.element, ElementType::kE4m3);
  EXPECT_EQ(plan.linear("model.layers.1.mlp.down_proj").reason, "scheme fp8");
  EXPECT_EQ(plan.linear("lm_head").weight, plain_format(ElementType::kBf16));
  EXPECT_EQ(plan.linear("lm_head").activation, plain_format(ElementType::kBf16));
  EXPECT_TRUE(plan.notes.empty());
  ASSERT_EQ(plan.kv.size(), 2u);
  EXPECT_EQ(plan.kv[0].k, row_format(ElementType::kE4m3));
  EXPECT_EQ(plan_of({.scheme = "float32"}).linear("lm_head").weight, plain_format(ElementType::kF32));
}

TEST(Plan, IgnoreRulesByNamePatternAndRole) {
  const PrecisionPlan plan = plan_of(
      {.scheme = "int8",
       .ignore = {"model.layers.0.mlp.down_proj", "re:.*layers\\.1\\..*gate$", "up_proj", "re:layers", "lm_head"}});
  EXPECT_EQ(plan.linear("model.layers.0.mlp.down_proj").weight.element, ElementType::kBf16);
  EXPECT_EQ(plan.linear("model.layers.0.mlp.down_proj").reason, "ignored: model.layers.0.mlp.down_proj");
  EXPECT_EQ(plan.linear("model.layers.1.mlp.down_proj").weight.element, ElementType::kInt8);
  EXPECT_EQ(plan.linear("model.layers.1.mlp.gate_proj").weight.element, ElementType::kInt8)
      << "gate$ must not catch gate_proj";
  EXPECT_EQ(plan.linear("model.layers.0.mlp.up_proj").reason, "ignored: up_proj");
  EXPECT_EQ(plan.linear("lm_head").reason, "ignored: lm_head");
  // Anchored at the start: "re:layers" finds nothing in "model.layers...".
  const std::vector<std::string> notes = {"ignore rule 're:.*layers\\.1\\..*gate$' matches no module",
                                          "ignore rule 're:layers' matches no module"};
  EXPECT_EQ(plan.notes, notes);
}

TEST(Plan, OverridesWinAndTheLastOneDecides) {
  const PrecisionPlan plan = plan_of({.scheme = "fp8",
                                      .ignore = {"down_proj"},
                                      .overrides = {{"re:.*layers\\.0\\..*", "int8"},
                                                    {"model.layers.0.mlp.down_proj", "fp8-block"},
                                                    {"lm_head", "fp8"},
                                                    {"nothing", "bf16"}}});
  EXPECT_EQ(plan.linear("model.layers.0.self_attn.q_proj").weight.element, ElementType::kInt8);
  EXPECT_EQ(plan.linear("model.layers.0.mlp.down_proj").weight.granularity, Granularity::kBlock);
  EXPECT_EQ(plan.linear("model.layers.0.mlp.down_proj").reason, "override model.layers.0.mlp.down_proj = fp8-block");
  EXPECT_EQ(plan.linear("model.layers.1.mlp.down_proj").weight.element, ElementType::kBf16);
  EXPECT_EQ(plan.linear("lm_head").weight, plan.linear("model.layers.1.mlp.up_proj").weight);
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("'nothing'"), std::string::npos);
}

TEST(Plan, BadRequestsNameWhatIsWrong) {
  const auto bad_scheme = make_plan(two_layers(), 2, {.scheme = "q4"});
  ASSERT_FALSE(bad_scheme.has_value());
  const auto bad_override = make_plan(two_layers(), 2, {.scheme = "fp8", .overrides = {{"lm_head", "q4"}}});
  ASSERT_FALSE(bad_override.has_value());
  EXPECT_NE(bad_override.error().where.find("lm_head"), std::string::npos);
  const auto bad_pattern = make_plan(two_layers(), 2, {.scheme = "fp8", .ignore = {"re:(unclosed"}});
  ASSERT_FALSE(bad_pattern.has_value());
  EXPECT_NE(bad_pattern.error().where.find("(unclosed"), std::string::npos);
  const auto empty = make_plan({{"x", Role::kQ, 0, 0, 128}}, 1, {.scheme = "fp8"});
  ASSERT_FALSE(empty.has_value());
  EXPECT_EQ(empty.error().where, "x");
}

TEST(KvFormats, NamesAndAliases) {
  EXPECT_EQ(kv_format("bf16").value(), plain_format(ElementType::kBf16));
  EXPECT_EQ(kv_format("float32").value(), plain_format(ElementType::kF32));
  EXPECT_EQ(kv_format("fp8").value(), kv_format("fp8_e4m3").value());
  EXPECT_EQ(kv_format("fp8_e4m3").value(), row_format(ElementType::kE4m3));
  EXPECT_EQ(kv_format("fp8_e5m2").value(), row_format(ElementType::kE5m2));
  EXPECT_EQ(kv_format("int8").value(), row_format(ElementType::kInt8));
  const auto unknown = kv_format("fp4");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().expected.find("fp8_e5m2"), std::string::npos);
}

TEST(KvRequest, KeysAndValuesApart) {
  PrecisionPlan plan = plan_of({.scheme = "fp8", .kv_cache_dtype = "auto", .k_dtype = "bf16"});
  EXPECT_EQ(plan.kv[1].k, plain_format(ElementType::kBf16));
  EXPECT_EQ(plan.kv[1].v, row_format(ElementType::kE4m3));
  EXPECT_EQ(plan.kv[1].reason, "scheme fp8, --k-dtype bf16");
  plan = plan_of({.scheme = "bf16", .kv_cache_dtype = "int8", .v_dtype = "fp8_e5m2"});
  EXPECT_EQ(plan.kv[0].k, row_format(ElementType::kInt8));
  EXPECT_EQ(plan.kv[0].v, row_format(ElementType::kE5m2));
  const auto unknown = make_plan(two_layers(), 2, {.scheme = "fp8", .v_dtype = "fp9"});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().where, "--v-dtype");
}

TEST(KvRequest, ScalesOfTheCheckpointAreKeptForTheSameElement) {
  TensorFormat stored = row_format(ElementType::kE4m3);
  stored.scale_time = ScaleTime::kStored;
  PrecisionPlan plan;
  plan.kv = {{stored, stored, "checkpoint"}};
  ASSERT_TRUE(apply_kv_request(plan, {.kv_cache_dtype = "fp8"}).has_value());
  EXPECT_EQ(plan.kv[0].k.scale_time, ScaleTime::kStored);
  ASSERT_TRUE(apply_kv_request(plan, {.v_dtype = "fp8_e5m2"}).has_value());
  EXPECT_EQ(plan.kv[0].k.scale_time, ScaleTime::kStored);
  EXPECT_EQ(plan.kv[0].v, row_format(ElementType::kE5m2));
}

TEST(NameRule, FollowsPythonsReMatch) {
  const auto matches = [](std::string_view rule, std::string_view name) {
    const auto parsed = NameRule::parse(rule);
    EXPECT_TRUE(parsed.has_value()) << rule;
    return parsed->matches(name).value();
  };
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_FALSE(matches("lm_head", "model.lm_head"));
  EXPECT_FALSE(matches("model.layers.0", "model-layers.0")) << "exact names are no patterns";
  EXPECT_TRUE(matches("re:.*down_proj", "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(matches("re:model", "model.layers.0.mlp.down_proj")) << "the end is open";
  EXPECT_FALSE(matches("re:mlp", "model.layers.0.mlp.down_proj")) << "the start is not";
  EXPECT_TRUE(matches("re:.*(q|k)_proj$", "model.layers.0.self_attn.k_proj"));
  EXPECT_FALSE(matches("re:^(?!.*self_attn).*k_proj", "model.layers.0.self_attn.k_proj")) << "look-ahead";
  EXPECT_TRUE(matches("re:", "anything"));
}

TEST(NameRule, RunawayAndHugePatternsAreErrors) {
  const auto runaway = NameRule::parse("re:(x+x+)+y");
  ASSERT_TRUE(runaway.has_value());
  EXPECT_FALSE(runaway->matches(std::string(60, 'x') + "zy").has_value());
  EXPECT_FALSE(NameRule::parse("re:" + std::string(5000, 'a')).has_value());
  EXPECT_FALSE(NameRule::parse("re:[z-a]").has_value());
}

TEST(Roles, RuleMatchesRoleNames) {
  const LinearModule down{"model.layers.3.mlp.down_proj", Role::kDown, 3, 8, 8};
  EXPECT_TRUE(rule_matches("down_proj", down).value());
  EXPECT_FALSE(rule_matches("up_proj", down).value());
  EXPECT_TRUE(rule_matches("model.layers.3.mlp.down_proj", down).value());
  EXPECT_EQ(role_name(Role::kHead), "lm_head");
}

}  // namespace
}  // namespace octavo
