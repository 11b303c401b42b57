// KV cache scales in every spelling.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/dialect.h"
#include "dialect_support.h"

namespace octavo {
namespace {

constexpr std::string_view kScheme =
    R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {},
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "dynamic": false}}})";

class KvScalesTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.num_kv_heads = 2;
    tensors_ = small_tensors(config_, ElementType::kBf16);
  }
  std::string attention(int layer) const { return "model.layers." + std::to_string(layer) + ".self_attn."; }
  void add(int layer, const std::string& name, float value, Shape shape = {1}) {
    tensors_.add(attention(layer) + name, ElementType::kF32, std::move(shape), [&](int64_t) { return value; });
  }
  StoredQuantization quantization(std::string_view json = kScheme) {
    auto result = read_quantization(parsed(json), config_, tensors_);
    EXPECT_TRUE(result.has_value()) << result.error().message();
    return result.value_or(StoredQuantization{});
  }
  Result<KvScales> scales(int layer, std::string_view json = kScheme) {
    return read_kv_scales(layer, quantization(json), config_, tensors_, used_, notes_);
  }
  static bool noted(const StoredQuantization& q, std::string_view text) {
    return std::any_of(q.plan.notes.begin(), q.plan.notes.end(),
                       [&](const std::string& note) { return note.find(text) != std::string::npos; });
  }

  ModelConfig config_ = small_config();
  MemoryTensors tensors_;
  std::set<std::string> used_;
  std::vector<std::string> notes_;
};

TEST_F(KvScalesTest, EverySpellingGivesTheSame) {
  struct Spelling {
    std::string k, v;
  };
  for (const Spelling& s :
       {Spelling{"k_scale", "v_scale"}, Spelling{"attn.k_scale", "attn.v_scale"},
        Spelling{"k_proj.k_scale", "v_proj.v_scale"}, Spelling{"qkv_proj.k_scale", "qkv_proj.v_scale"},
        Spelling{"k_proj.output_scale", "v_proj.output_scale"}, Spelling{"k_cache.scale", "v_cache.scale"}}) {
    tensors_ = small_tensors(config_, ElementType::kBf16);
    for (const int layer : {0, 1}) {
      add(layer, s.k, 0.05f, {});
      add(layer, s.v, 4.0f);
    }
    const StoredQuantization q = quantization();
    EXPECT_TRUE(noted(q, "KV scales: 2/2 layers"));
    EXPECT_EQ(q.plan.kv[1].k.element, ElementType::kE4m3);
    EXPECT_EQ(q.plan.kv[1].k.scale_time, ScaleTime::kStored);
    const auto read = scales(1);
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ(read->k, std::vector<float>{0.05f}) << s.k;
    EXPECT_EQ(read->v, std::vector<float>{4.0f}) << s.v;
    EXPECT_TRUE(used_.contains(attention(1) + s.k));
  }
}

TEST_F(KvScalesTest, OneScaleForBoth) {
  add(0, "kv_scale", 4.0f);
  add(1, "attn.kv_scale", 4.0f);
  const auto read = scales(0);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->k, std::vector<float>{4.0f});
  EXPECT_EQ(read->v, std::vector<float>{4.0f});
  EXPECT_TRUE(noted(quantization(), "KV scales: 2/2 layers"));
}

TEST_F(KvScalesTest, OnePerHead) {
  for (const int layer : {0, 1}) {
    tensors_.add(attention(layer) + "k_scale", ElementType::kBf16, {2, 1, 1}, [](int64_t i) { return double(i + 1); });
    add(layer, "v_scale", 4.0f);
  }
  const auto read = scales(0);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->k, (std::vector<float>{1.0f, 2.0f}));
  tensors_.add(attention(0) + "k_scale", ElementType::kBf16, {3}, [](int64_t) { return 1; });
  EXPECT_FALSE(scales(0).has_value());
}

TEST_F(KvScalesTest, ScalesAreUsedAlsoWhereTheConfigIsSilent) {
  for (const int layer : {0, 1}) {
    add(layer, "k_scale", 0.05f);
    add(layer, "v_scale", 4.0f);
  }
  const StoredQuantization q = quantization("{}");
  EXPECT_EQ(q.plan.kv[0].v.scale_time, ScaleTime::kStored);
  EXPECT_EQ(q.plan.kv[0].reason, "checkpoint, stored scales");
}

TEST_F(KvScalesTest, MissingLayerIsNamedAndComputed) {
  for (const std::string_view json : {kScheme, std::string_view("{}")}) {
    add(0, "k_scale", 0.05f);
    add(0, "v_scale", 4.0f);
    const StoredQuantization q = quantization(json);
    EXPECT_TRUE(noted(q, "KV scales: 1/2 layers"));
    EXPECT_TRUE(noted(q, "layer 1 has no stored k and v scale"));
    EXPECT_EQ(q.plan.kv[1].k, row_format(ElementType::kE4m3));
    const auto read = scales(1, json);
    ASSERT_TRUE(read.has_value());
    EXPECT_TRUE(read->k.empty() && read->v.empty());
  }
}

TEST_F(KvScalesTest, ALoneScaleLeavesTheOtherSideComputed) {
  for (const int layer : {0, 1}) add(layer, "v_scale", 4.0f);
  const StoredQuantization q = quantization();
  EXPECT_EQ(q.plan.kv[0].k, row_format(ElementType::kE4m3));
  EXPECT_EQ(q.plan.kv[0].v.scale_time, ScaleTime::kStored);
  EXPECT_TRUE(noted(q, "layer 0 has no stored k scale: computed per token and head"));
  const auto read = scales(0);
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->k.empty());
  EXPECT_EQ(read->v, std::vector<float>{4.0f});
}

TEST_F(KvScalesTest, ImpossibleScalesAreErrors) {
  for (const float bad : {0.0f, -1.0f, NAN, INFINITY}) {
    add(0, "k_scale", bad);
    add(0, "v_scale", 4.0f);
    const auto read = scales(0);
    ASSERT_FALSE(read.has_value()) << bad;
    EXPECT_NE(read.error().where.find(attention(0) + "k_scale"), std::string::npos);
  }
}

TEST_F(KvScalesTest, TwoSpellingsMustAgree) {
  add(0, "k_scale", 2.0f);
  add(0, "v_scale", 2.0f);
  add(0, "kv_scale", 2.0f);
  EXPECT_TRUE(scales(0).has_value());
  add(0, "kv_scale", 3.0f);
  const auto read = scales(0);
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().found.find("kv_scale"), std::string::npos);
}

TEST_F(KvScalesTest, SchemesThatAreDynamicOrOfAnotherType) {
  const auto with = [](std::string_view scheme) {
    return R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "kv_cache_scheme": )" +
           std::string(scheme) + "}}";
  };
  const StoredQuantization dynamic = quantization(with(R"({"num_bits": 8, "type": "float", "dynamic": true})"));
  EXPECT_EQ(dynamic.plan.kv[0].k, row_format(ElementType::kE4m3));
  EXPECT_FALSE(noted(dynamic, "layer 0")) << "nothing was promised";
  EXPECT_EQ(quantization(with(R"({"num_bits": 8, "type": "int", "dynamic": true})")).plan.kv[0].v,
            row_format(ElementType::kInt8));
  EXPECT_EQ(quantization("{}").plan.kv[0].k, plain_format(ElementType::kBf16));
  for (const std::string bad :
       {R"({"num_bits": 4})", R"({"type": "posit"})", R"({"symmetric": false})", R"({"strategy": "channel"})"})
    EXPECT_FALSE(read_quantization(parsed(with(bad)), config_, tensors_).has_value()) << bad;
}

TEST_F(KvScalesTest, QueryScalesAreMentioned) {
  add(0, "q_scale", 2.0f);
  ASSERT_TRUE(scales(0).has_value());
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("q_scale is not used"), std::string::npos);
  EXPECT_TRUE(used_.contains(attention(0) + "q_scale"));
}

}  // namespace
}  // namespace octavo
