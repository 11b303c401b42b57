#include "precision/plan_file.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace octavo {
namespace {

const ModelShape kShape{"LlamaForCausalLM", 2, 128, 320, 512};

std::vector<LinearModule> modules_of() {
  std::vector<LinearModule> modules;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    modules.push_back({p + "self_attn.q_proj", Role::kQ, layer, 256, 128});
    modules.push_back({p + "mlp.down_proj", Role::kDown, layer, 128, 320});
  }
  modules.push_back({"lm_head", Role::kHead, -1, 512, 128});
  return modules;
}

PlanFile plan_of() {
  PlanFile plan{.path = "mixed.json", .model = kShape, .base = "bf16"};
  const char* schemes[] = {"fp8", "int4", "bf16", "nvfp4", "bf16"};
  for (size_t i = 0; i < 5; ++i) plan.linears.emplace_back(modules_of()[i].name, schemes[i]);
  plan.kv = {{"fp8_e4m3", "bf16"}, {"bf16", "int8"}};
  return plan;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

TEST(PlanFile, ReadsWhatItWrites) {
  const PlanFile plan = plan_of();
  const auto read = parse_plan_file(plan_file_text(plan), "mixed.json");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->model, plan.model);
  EXPECT_EQ(read->base, "bf16");
  EXPECT_EQ(read->linears, plan.linears);
  EXPECT_EQ(read->kv, plan.kv);
}

TEST(PlanFile, GivesEveryModuleItsSchemesFormats) {
  const auto plan = make_plan(modules_of(), kShape, plan_of());
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_EQ(plan->scheme, "plan mixed.json");
  const LinearPlan& int4 = plan->linear("model.layers.0.mlp.down_proj");
  EXPECT_EQ(int4.weight, (*find_scheme("int4"))->weight);
  EXPECT_EQ(int4.activation, plain_format(ElementType::kBf16));
  EXPECT_EQ(int4.reason, "plan mixed.json: int4");
  EXPECT_EQ(plan->linear("model.layers.0.self_attn.q_proj").activation, row_format(ElementType::kE4m3));
  EXPECT_EQ(plan->linear("lm_head").weight, plain_format(ElementType::kBf16));
  EXPECT_EQ(plan->kv[0].k, row_format(ElementType::kE4m3));
  EXPECT_EQ(plan->kv[0].v, plain_format(ElementType::kBf16));
  EXPECT_EQ(plan->kv[1].v, row_format(ElementType::kInt8));
}

TEST(PlanFile, AnotherModelIsRefusedByWhatDiffers) {
  ModelShape other = kShape;
  other.hidden_size = 256;
  other.vocabulary = 1000;
  const auto plan = make_plan(modules_of(), other, plan_of());
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().what, "the plan is for another model");
  EXPECT_EQ(plan.error().where, "mixed.json");
  EXPECT_EQ(plan.error().found, "hidden_size 128, vocabulary 512");
  EXPECT_EQ(plan.error().expected, "hidden_size 256, vocabulary 1000");
}

TEST(PlanFile, ModulesAndLayersMustBeTheModels) {
  PlanFile lacking = plan_of();
  lacking.linears.erase(lacking.linears.begin() + 1);
  const auto lacks = make_plan(modules_of(), kShape, lacking);
  ASSERT_FALSE(lacks.has_value());
  EXPECT_EQ(lacks.error().expected, "model.layers.0.mlp.down_proj");
  PlanFile unknown = plan_of();
  unknown.linears.emplace_back("model.layers.7.mlp.down_proj", "fp8");
  const auto names = make_plan(modules_of(), kShape, unknown);
  ASSERT_FALSE(names.has_value());
  EXPECT_EQ(names.error().found, "model.layers.7.mlp.down_proj");
  PlanFile short_kv = plan_of();
  short_kv.kv.pop_back();
  const auto kv = make_plan(modules_of(), kShape, short_kv);
  ASSERT_FALSE(kv.has_value());
  EXPECT_EQ(kv.error().found, "1 layers");
}

TEST(PlanFile, DamagedFilesAreRefusedByPlace) {
  const std::string text = plan_file_text(plan_of());
  struct Case {
    std::string what, with, named;
  };
  for (const Case& c :
       {Case{"\"octavo_plan\": 1", "\"octavo_plan\": 2", "version"},
        Case{"\"base\": \"bf16\"", "\"base\": \"fp7\"", "\"base\""},
        Case{"\"int4\"", "\"int5\"", "model.layers.0.mlp.down_proj"},
        Case{"\"int4\"", "4", "model.layers.0.mlp.down_proj"}, Case{"\"v\": \"int8\"", "\"v\": \"int9\"", "kv[1]"},
        Case{"\"v\": \"int8\"", "\"w\": \"int8\"", "kv[1]"},
        Case{"\"hidden_size\": 128", "\"hidden_size\": \"128\"", "hidden_size"},
        Case{"\"kv\": [", "\"extra\": [", "extra"},
        Case{"\"linears\": {", "\"linears\": 7, \"kv\": {", "same key twice"},
        Case{"\"octavo_plan\": 1,", "", "not a plan file"}, Case{"}", "", "not valid JSON"}}) {
    const auto plan = parse_plan_file(replaced(text, c.what, c.with), "broken.json");
    ASSERT_FALSE(plan.has_value()) << c.with;
    EXPECT_NE(plan.error().message().find(c.named), std::string::npos) << plan.error().message();
    EXPECT_NE(plan.error().where.find("broken.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace octavo
