// The fp8 dialect on checkpoints made in memory: grids that do not divide, missing and broken scales, ignore lists.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/dialect.h"
#include "dialect_support.h"

namespace octavo {
namespace {

constexpr std::string_view kBlock =
    R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
        "weight_block_size": [128, 128]}})";
constexpr std::string_view kTensor =
    R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}})";
constexpr std::string_view kStatic =
    R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}})";
const std::string kQ = "model.layers.0.self_attn.q_proj", kDown = "model.layers.1.mlp.down_proj";

class Fp8 : public testing::Test {
 protected:
  ModelConfig config_ = small_config();
  MemoryTensors tensors_ = small_tensors(config_, ElementType::kE4m3);

  void powers_of_two(ElementType element = ElementType::kF32) {
    add_block_scales(tensors_, config_, "weight_scale_inv", element, [&](int64_t i, int64_t j) {
      return element == ElementType::kE8m0 ? static_cast<double>(127 + i + 2 * j - 8)
                                           : std::ldexp(1.0, static_cast<int>(i + 2 * j - 8));
    });
  }
  void one_scale(const std::string& name, Shape shape, float value) {
    for (const LinearModule& module : config_.linear_modules())
      if (module.role != Role::kHead)
        tensors_.add(module.name + "." + name, ElementType::kF32, shape, [&](int64_t) { return value; });
  }
  OneLinear read(std::string_view json, const std::string& name) { return read_one(json, config_, tensors_, name); }
};

TEST_F(Fp8, EveryElementTakesItsOwnBlocksScale) {
  powers_of_two();
  for (const LinearModule& module : config_.linear_modules()) {
    if (module.role == Role::kHead) continue;
    const OneLinear one = read(kBlock, module.name);
    ASSERT_TRUE(one.linear.has_value()) << one.error();
    EXPECT_EQ(one.linear->format.describe(), "fp8_e4m3 per 128x128");
    const std::vector<float> values = dequantize(one.linear->view());
    for (int64_t r = 0; r < module.rows; ++r)
      for (int64_t c = 0; c < module.cols; ++c) {
        const int64_t i = r * module.cols + c;
        const auto expected = static_cast<float>(
            std::ldexp(static_cast<double>(i * 7 % 15 - 7), static_cast<int>(r / 128 + 2 * (c / 128) - 8)));
        ASSERT_EQ(values[static_cast<size_t>(i)], expected) << module.name << " row " << r << " column " << c;
      }
  }
}

TEST_F(Fp8, PowerOfTwoScalesAreTheSameInEveryScaleType) {
  powers_of_two();
  const std::vector<float> reference = dequantize(read(kBlock, kDown).linear->view());
  for (const ElementType element : {ElementType::kBf16, ElementType::kF16, ElementType::kE8m0}) {
    powers_of_two(element);
    const OneLinear one = read(kBlock, kDown);
    ASSERT_TRUE(one.linear.has_value()) << one.error();
    EXPECT_EQ(dequantize(one.linear->view()), reference) << element_name(element);
    EXPECT_EQ(one.linear->format.scale, element == ElementType::kE8m0 ? ElementType::kE8m0 : ElementType::kF32);
  }
}

TEST_F(Fp8, Ue8m0IsAboutActivationsAndLeavesStoredScalesAlone) {
  add_block_scales(tensors_, config_, "weight_scale_inv", ElementType::kF32,
                   [](int64_t i, int64_t j) { return 0.3 + 0.1 * double(i) + double(j); });
  const OneLinear plain = read(kBlock, kDown);
  const OneLinear ue8m0 = read(R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}})",
                               kDown);
  ASSERT_TRUE(ue8m0.linear.has_value()) << ue8m0.error();
  EXPECT_EQ(dequantize(ue8m0.linear->view()), dequantize(plain.linear->view()));
  EXPECT_EQ(ue8m0.quantization->plan.linear(kDown).activation,
            block_format(ElementType::kE4m3, 1, 128, ElementType::kE8m0));
  EXPECT_EQ(plain.quantization->plan.linear(kDown).activation, block_format(ElementType::kE4m3, 1, 128));
}

TEST_F(Fp8, E8m0BytesAtTheEnds) {
  powers_of_two(ElementType::kE8m0);
  std::byte* scale = tensors_.bytes(kQ + ".weight_scale_inv");
  scale[0] = std::byte{0x00};
  scale[1] = std::byte{0x7F};
  scale[2] = std::byte{0xFE};
  const OneLinear one = read(kBlock, kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->scales[0], std::ldexp(1.0f, -127));
  EXPECT_EQ(one.linear->scales[1], 1.0f);
  EXPECT_EQ(one.linear->scales[2], std::ldexp(1.0f, 127));
  scale[1] = std::byte{0xFF};
  const std::string error = read(kBlock, kQ).error();
  EXPECT_NE(error.find(kQ + ".weight_scale_inv"), std::string::npos) << error;
  EXPECT_NE(error.find("nan at index 1"), std::string::npos) << error;
}

TEST_F(Fp8, BlockSizeComesFromTheConfig) {
  // 192 rows in 3 blocks of 64: the same grid shape as 3 blocks of 96 or so would have, told apart by the config only.
  for (const LinearModule& module : config_.linear_modules())
    if (module.role != Role::kHead)
      tensors_.add(module.name + ".weight_scale_inv", ElementType::kF32,
                   {ceil_div(module.rows, 64), ceil_div(module.cols, 128)}, [](int64_t i) { return double(i + 1); });
  const OneLinear one = read(R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
      "weight_block_size": [64, 128]}})",
                             kDown);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->view().scale_at(64, 0), 3.0f);
  EXPECT_EQ(one.linear->view().scale_at(63, 128), 2.0f);
}

TEST_F(Fp8, WrongGridNamesTheTensorAndBothShapes) {
  powers_of_two();
  const std::string scale = "model.layers.0.mlp.down_proj.weight_scale_inv";  // [320, 192] -> [3, 2]
  tensors_.add(scale, ElementType::kF32, {4, 2}, [](int64_t) { return 1; });
  const std::string error = read(kBlock, kQ).error();
  for (const std::string_view part : {scale.c_str(), "[4, 2]", "[3, 2]", "128x128"})
    EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  tensors_.add(scale, ElementType::kF32, {2, 3}, [](int64_t) { return 1; });
  EXPECT_FALSE(read(kBlock, kQ).quantization.has_value()) << "transposed";
  tensors_.add(scale, ElementType::kF32, {6}, [](int64_t) { return 1; });
  EXPECT_FALSE(read(kBlock, kQ).quantization.has_value()) << "flat";
}

TEST_F(Fp8, MissingScaleIsAnError) {
  powers_of_two();
  tensors_.remove(kDown + ".weight_scale_inv");
  const std::string error = read(kBlock, kQ).error();
  EXPECT_NE(error.find("fp8_e4m3 weight without a scale"), std::string::npos) << error;
  EXPECT_NE(error.find(kDown), std::string::npos) << error;
}

TEST_F(Fp8, TwoScalesAreAnError) {
  powers_of_two();
  tensors_.add(kQ + ".weight_scale", ElementType::kF32, {1}, [](int64_t) { return 1; });
  EXPECT_NE(read(kBlock, kQ).error().find("two scales"), std::string::npos);
}

TEST_F(Fp8, ScaleValuesThatCannotBe) {
  powers_of_two();
  for (const float bad : {-0.5f, NAN, INFINITY, -INFINITY}) {
    tensors_.add(kQ + ".weight_scale_inv", ElementType::kF32, {2, 3}, [&](int64_t i) { return i == 4 ? bad : 1.0f; });
    const std::string error = read(kBlock, kQ).error();
    EXPECT_NE(error.find("index 4"), std::string::npos) << error;
  }
}

TEST_F(Fp8, ZeroScaleGivesZerosAndANote) {
  powers_of_two();
  tensors_.add(kQ + ".weight_scale_inv", ElementType::kF32, {2, 3}, [](int64_t i) { return i == 4 ? 0.0f : 1.0f; });
  const OneLinear one = read(kBlock, kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  for (const int64_t col : {128, 200, 255}) EXPECT_EQ(one.linear->view().at(130, col), 0.0f);
  EXPECT_NE(one.linear->view().at(130, 0), 0.0f);
  EXPECT_TRUE(one.noted("1 of 6 scales are zero"));
}

TEST_F(Fp8, StoredNanCodesAreCounted) {
  powers_of_two();
  for (const int at : {0, 200, 5000})
    tensors_.bytes(kQ + ".weight")[at] = std::byte{at == 200 ? uint8_t{0xFF} : uint8_t{0x7F}};
  const OneLinear one = read(kBlock, kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_TRUE(one.noted(kQ + ".weight: 3 stored values are NaN"));
}

TEST_F(Fp8, PerTensorInEverySpelling) {
  for (const std::string name : {"weight_scale", "weight_scale_inv"})
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
      tensors_ = small_tensors(config_, ElementType::kE4m3);
      one_scale(name, shape, 0.25f);
      const OneLinear one = read(kTensor, kQ);
      ASSERT_TRUE(one.linear.has_value()) << one.error();
      EXPECT_EQ(one.linear->format.granularity, Granularity::kTensor);
      EXPECT_EQ(one.linear->view().at(3, 5), 0.25f * float((3 * 320 + 5) * 7 % 15 - 7));
      EXPECT_EQ(one.quantization->plan.linear(kQ).activation, row_format(ElementType::kE4m3));
    }
}

TEST_F(Fp8, PerChannelWhereTheScaleHasOneValuePerRow) {
  for (const LinearModule& module : config_.linear_modules())
    if (module.role != Role::kHead)
      tensors_.add(module.name + ".weight_scale", ElementType::kF32, {module.rows, 1},
                   [](int64_t i) { return double(i + 1); });
  const OneLinear one = read(kTensor, kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->format.granularity, Granularity::kRow);
  EXPECT_EQ(one.linear->view().scale_at(255, 0), 256.0f);
  tensors_.add(kQ + ".weight_scale", ElementType::kF32, {255, 1}, [](int64_t) { return 1; });
  EXPECT_NE(read(kTensor, kQ).error().find("[255, 1]"), std::string::npos);
}

TEST_F(Fp8, StaticActivations) {
  one_scale("weight_scale", {}, 0.25f);
  EXPECT_NE(read(kStatic, kQ).error().find("input_scale"), std::string::npos) << "input scales are missing";
  for (const std::string name : {"input_scale", "activation_scale"}) {
    tensors_ = small_tensors(config_, ElementType::kE4m3);
    one_scale("weight_scale", {}, 0.25f);
    one_scale(name, {1}, 0.125f);
    const OneLinear one = read(kStatic, kQ);
    ASSERT_TRUE(one.linear.has_value()) << one.error();
    EXPECT_EQ(one.linear->input_scale, 0.125f);
    const TensorFormat activation = one.quantization->plan.linear(kQ).activation;
    EXPECT_EQ(activation.granularity, Granularity::kTensor);
    EXPECT_EQ(activation.scale_time, ScaleTime::kStored);
    EXPECT_TRUE(one.used.contains(kQ + "." + name));
  }
  tensors_.add(kQ + ".activation_scale", ElementType::kF32, {1}, [](int64_t) { return 0; });
  EXPECT_NE(read(kStatic, kQ).error().find("input scale is zero"), std::string::npos);
  one_scale("activation_scale", {1}, 1.0f);
  const OneLinear dynamic = read(kTensor, kQ);
  ASSERT_TRUE(dynamic.linear.has_value());
  EXPECT_FALSE(dynamic.linear->input_scale.has_value());
  EXPECT_TRUE(dynamic.noted("activations are dynamic"));
}

TEST_F(Fp8, ModulesNotToConvert) {
  const auto wide = [&](const std::string& name) {
    const LinearModule module = module_named(config_, name);
    tensors_.add(name + ".weight", ElementType::kBf16, {module.rows, module.cols}, [](int64_t) { return 1; });
    tensors_.remove(name + ".weight_scale_inv");
  };
  powers_of_two();
  wide(kQ);
  wide("model.layers.0.self_attn.k_proj");
  wide("model.layers.0.self_attn.v_proj");
  wide(kDown);
  const OneLinear one = read(R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128], "modules_to_not_convert":
      ["lm_head", "model.layers.0.self_attn.qkv_proj", "layers.1.mlp.down_proj", "model.norm", "gate", "re:.*nothing"]}})",
                             kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  const PrecisionPlan& plan = one.quantization->plan;
  EXPECT_EQ(plan.linear(kQ).reason, "ignored: model.layers.0.self_attn.qkv_proj");
  EXPECT_EQ(plan.linear("model.layers.0.self_attn.v_proj").weight, plain_format(ElementType::kBf16));
  EXPECT_EQ(plan.linear(kDown).reason, "ignored: layers.1.mlp.down_proj");
  EXPECT_EQ(plan.linear("model.layers.0.mlp.gate_proj").weight.element, ElementType::kE4m3)
      << "'gate' is not gate_proj";
  EXPECT_EQ(plan.linear("lm_head").reason, "ignored: lm_head");
  EXPECT_TRUE(one.noted("'gate'"));
  EXPECT_TRUE(one.noted("'re:.*nothing'"));
  EXPECT_FALSE(one.noted("model.norm")) << "a layer that is no linear module is no mistake";
}

TEST_F(Fp8, ConfigAndTensorsMustAgree) {
  powers_of_two();
  const std::string ignored_but_fp8 =
      read(R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128], "ignored_layers": ["model.layers.0.self_attn.q_proj"]}})",
           kQ)
          .error();
  EXPECT_NE(ignored_but_fp8.find(kQ + ".weight"), std::string::npos) << ignored_but_fp8;
  const std::string no_config = read("{}", kQ).error();
  EXPECT_NE(no_config.find("no quantization_config"), std::string::npos) << no_config;
  tensors_.add(kQ + ".weight", ElementType::kBf16, {256, 320}, [](int64_t) { return 1; });
  tensors_.remove(kQ + ".weight_scale_inv");
  const OneLinear unlisted = read(kBlock, kQ);
  ASSERT_TRUE(unlisted.linear.has_value()) << unlisted.error();
  EXPECT_TRUE(unlisted.noted(kQ + ".weight is stored as BF16"));
  tensors_.add(kQ + ".weight", ElementType::kInt8, {256, 320}, [](int64_t) { return 1; });
  EXPECT_NE(read(kBlock, kQ).error().find("I8"), std::string::npos);
  tensors_.add(kQ + ".weight", ElementType::kE4m3, {320, 256}, [](int64_t) { return 1; });
  EXPECT_NE(read(kBlock, kQ).error().find("[320, 256]"), std::string::npos);
  tensors_.remove(kQ + ".weight");
  EXPECT_NE(read(kBlock, kQ).error().find("weight is missing"), std::string::npos);
}

TEST_F(Fp8, BadConfigsNameTheKey) {
  powers_of_two();
  const auto error_of = [&](const std::string& keys) {
    return read(R"({"quantization_config": {"quant_method": "fp8", )" + keys + "}}", kQ).error();
  };
  struct Bad {
    std::string keys, part;
  };
  for (const Bad& bad : {
           Bad{R"("activation_scheme": "sometimes")", "activation_scheme"},
           Bad{R"("activation_scheme": 3)", "activation_scheme"},
           Bad{R"("activation_scheme": "static", "weight_block_size": [128, 128])", "activation_scheme"},
           Bad{R"("weight_block_size": [128])", "weight_block_size"},
           Bad{R"("weight_block_size": [0, 128])", "weight_block_size"},
           Bad{R"("weight_block_size": [128, 1e9])", "weight_block_size"},
           Bad{R"("weight_block_size": [128, 18446744073709551615])", "weight_block_size"},
           Bad{R"("weight_block_size": "128y128")", "weight_block_size"},
           Bad{R"("fmt": "e5m2")", "fmt"},
           Bad{R"("scale_fmt": "fp12")", "scale_fmt"},
           Bad{R"("ignored_layers": "lm_head")", "ignored_layers"},
           Bad{R"("ignored_layers": [1])", "ignored_layers"},
           Bad{R"("ignored_layers": ["re:("])", "re:("},
           Bad{R"("kv_cache_scheme": "NVFP4")", "kv_cache_scheme"},
       }) {
    const std::string error = error_of(bad.keys);
    EXPECT_NE(error.find(bad.part), std::string::npos) << bad.keys << "\n" << error;
  }
  EXPECT_TRUE(read(R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})", kQ)
                  .noted("activation_scheme"));
}

TEST_F(Fp8, ConfigInsideTextConfigIsFound) {
  powers_of_two();
  const OneLinear one =
      read(R"({"text_config": {"quantization_config": {"quant_method": "FP8", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128]}}})",
           kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.quantization->dialect, "fp8");
}

TEST_F(Fp8, TiedHeadIsTheEmbedding) {
  powers_of_two();
  config_.tied_embeddings = true;
  tensors_.remove("lm_head.weight");
  const OneLinear one = read(kBlock, "lm_head");
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->entry->name, "model.embed_tokens.weight");
  EXPECT_EQ(one.quantization->plan.linear("lm_head").reason, "tied to the embedding");
  config_.tied_embeddings = false;
  EXPECT_NE(read(kBlock, "lm_head").error().find("tie_word_embeddings"), std::string::npos);
}

}  // namespace
}  // namespace octavo
