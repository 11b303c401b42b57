// The spelling of KV caches.
#include "precision/kv_format.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

PrecisionPlan plan_of_layers(int layers) {
  PrecisionPlan plan;
  plan.kv.assign(static_cast<size_t>(layers),
                 KvPlan{.k = plain_format(ElementType::kBf16), .v = plain_format(ElementType::kBf16), .reason = "x"});
  return plan;
}

TEST(KvFormat, OptionsSayWhatKeysAndValuesBecome) {
  const auto request = parse_kv("int8:channel:wide4:temperature");
  ASSERT_TRUE(request.has_value()) << request.error().message();
  EXPECT_TRUE(request->k.stored() && request->k.options.channels && request->k.options.temperature);
  EXPECT_EQ(request->k.options.wide_tokens, 4);
  EXPECT_FALSE(request->v.stored() || request->v.options.channels || request->v.options.temperature);
  EXPECT_EQ(request->v.options.wide_tokens, 4);
  const KvRequest both = parse_kv("fp8:channel:static").value();
  EXPECT_TRUE(both.k.options.channels && both.v.stored() && !both.v.options.tensor_scale);
  const KvRequest block = parse_kv("fp8_e5m2:block1024").value();
  EXPECT_TRUE(block.k.stored() && block.v.stored());
  EXPECT_EQ(block.v.options.rescale_tokens, 1024);
  EXPECT_EQ(parse_kv("bf16").value().k.format, plain_format(ElementType::kBf16));
}

TEST(KvFormat, NamesReadBackAsTheSame) {
  for (const char* name :
       {"bf16", "float32", "fp8_e4m3", "fp8_e5m2", "int8", "fp8_e4m3:static", "int8:tensor:wide1", "int8:channel",
        "fp8_e4m3:block32:wide32", "int8:channel:wide4:temperature", "fp8_e4m3:static:temperature", "fp8_e4m3:wide8"}) {
    const auto k = parse_kv_side(name, KvPart::kK);
    ASSERT_TRUE(k.has_value()) << k.error().message();
    EXPECT_EQ(kv_side_name(k->format, k->options), name);
  }
  EXPECT_EQ(describe_kv(row_format(ElementType::kE4m3), {.wide_tokens = 4}), "fp8_e4m3 per row, first 4 tokens bf16");
}

TEST(KvFormat, WhatDoesNotFitIsAnErrorThatQuotesIt) {
  for (const char* text : {"",
                           "fp4",
                           "fp8:",
                           "fp8:fast",
                           "bf16:static",
                           "float32:wide4",
                           "fp8:static:static",
                           "fp8:static:tensor",
                           "fp8:dynamic:static",
                           "fp8:channel:dynamic",
                           "fp8:block1024:channel",
                           "fp8:block0",
                           "fp8:block33",
                           "fp8:block131072",
                           "fp8:wide0",
                           "fp8:wide33",
                           "fp8:wide",
                           "fp8:wide4x",
                           "fp8:wide-1",
                           "fp8:wide99999999999",
                           "fp8:skip",
                           "fp8:skip3-1",
                           "fp8:skip1+",
                           "fp8:skip0:skip1",
                           "fp8::static",
                           ":static"}) {
    const auto parsed = parse_kv(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_FALSE(parsed.error().expected.empty()) << text;
  }
  EXPECT_FALSE(parse_kv("int8:channel", KvPart::kV).has_value());
  EXPECT_FALSE(parse_kv("int8:temperature", KvPart::kV).has_value());
  EXPECT_FALSE(parse_kv("int8:channel:static", KvPart::kK).has_value());
  EXPECT_FALSE(parse_kv_side("int8:skip0", KvPart::kK).has_value());
  EXPECT_FALSE(kv_format("fp8:static").has_value());
}

TEST(KvFormat, SkippedLayersStayWide) {
  PrecisionPlan plan = plan_of_layers(4);
  ASSERT_TRUE(apply_kv_request(plan, {.kv_cache_dtype = "fp8_e4m3:wide2:skip0+2-3"}).has_value());
  for (const size_t wide : {0u, 2u, 3u}) {
    EXPECT_EQ(plan.kv[wide].k, plain_format(ElementType::kBf16));
    EXPECT_EQ(plan.kv[wide].v_options, KvOptions{});
  }
  EXPECT_EQ(plan.kv[1].k, row_format(ElementType::kE4m3));
  EXPECT_EQ(plan.kv[1].k_options.wide_tokens, 2);
  ASSERT_TRUE(apply_kv_request(plan, {.k_dtype = "int8:skip1"}).has_value());
  EXPECT_EQ(plan.kv[1].k, plain_format(ElementType::kBf16));
  EXPECT_EQ(plan.kv[1].v, row_format(ElementType::kE4m3));
  const auto outside = apply_kv_request(plan, {.kv_cache_dtype = "fp8:skip2-4"});
  ASSERT_FALSE(outside.has_value());
  EXPECT_EQ(outside.error().where, "--kv-cache-dtype");
  EXPECT_NE(outside.error().found.find("layer 4"), std::string::npos);
}

// What a checkpoint stores for an element stays, unless the request speaks of scales.
TEST(KvFormat, StoredScalesStayUnlessAskedOtherwise) {
  const KvRequest stored = parse_kv("int8:channel:static").value();
  const auto after = [&](const std::string& text) {
    PrecisionPlan plan = plan_of_layers(1);
    plan.kv[0] = {.k = stored.k.format, .v = stored.v.format, .reason = "stored"};
    plan.kv[0].k_options = stored.k.options;
    EXPECT_TRUE(apply_kv_request(plan, {.kv_cache_dtype = text}).has_value());
    return plan.kv[0];
  };
  EXPECT_EQ(kv_name(after("int8")), "int8:channel/int8:static");
  EXPECT_EQ(kv_name(after("int8:wide2")), "int8:channel:wide2/int8:static:wide2");
  EXPECT_EQ(kv_name(after("int8:dynamic")), "int8");
  EXPECT_EQ(kv_name(after("int8:static")), "int8:static");
  EXPECT_EQ(kv_name(after("fp8_e4m3")), "fp8_e4m3");
}

}  // namespace
}  // namespace octavo
