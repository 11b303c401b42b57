// The compressed-tensors dialect and the plain one on checkpoints made in memory.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/dialect.h"
#include "dialect_support.h"

namespace octavo {
namespace {

const std::string kQ = "model.layers.0.self_attn.q_proj", kDown = "model.layers.1.mlp.down_proj";
constexpr std::string_view kChannel = R"({"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": false})";
constexpr std::string_view kToken = R"({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true})";

std::string group(std::string_view targets, std::string_view weights, std::string_view activations,
                  std::string_view format = "") {
  std::string text = R"({"targets": )" + std::string(targets) + R"(, "weights": )" + std::string(weights) +
                     R"(, "input_activations": )" + std::string(activations);
  if (!format.empty()) text += R"(, "format": ")" + std::string(format) + "\"";
  return text + "}";
}

std::string config(std::string_view groups, std::string_view ignore = R"(["lm_head"])", std::string_view more = "",
                   std::string_view format = "float-quantized") {
  return R"({"quantization_config": {"quant_method": "compressed-tensors", "format": ")" + std::string(format) +
         R"(", "ignore": )" + std::string(ignore) + std::string(more) + R"(, "config_groups": {)" +
         std::string(groups) + "}}}";
}

class CompressedTensors : public testing::Test {
 protected:
  ModelConfig config_ = small_config();
  MemoryTensors tensors_ = small_tensors(config_, ElementType::kE4m3);

  void channel_scales() {
    for (const LinearModule& module : config_.linear_modules())
      if (module.role != Role::kHead)
        tensors_.add(module.name + ".weight_scale", ElementType::kBf16, {module.rows, 1},
                     [](int64_t i) { return double(i % 8 + 1); });
  }
  void wide(const std::string& name) {
    const LinearModule module = module_named(config_, name);
    tensors_.add(name + ".weight", ElementType::kBf16, {module.rows, module.cols}, [](int64_t) { return 1; });
    tensors_.remove(name + ".weight_scale");
  }
  OneLinear read(std::string_view json, const std::string& name) { return read_one(json, config_, tensors_, name); }
};

TEST_F(CompressedTensors, ChannelWeightsTokenActivations) {
  channel_scales();
  const OneLinear one = read(config("\"group_0\": " + group(R"(["Linear"])", kChannel, kToken)), kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->view().at(9, 4), 2.0f * float((9 * 320 + 4) * 7 % 15 - 7));
  EXPECT_EQ(one.quantization->plan.linear(kQ).activation, row_format(ElementType::kE4m3));
}

TEST_F(CompressedTensors, WeightOnlyGroupsKeepActivationsWide) {
  channel_scales();
  const OneLinear one = read(config("\"group_0\": " + group(R"(["Linear"])", kChannel, "null")), kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.quantization->plan.linear(kQ).activation, plain_format(ElementType::kBf16));
}

TEST_F(CompressedTensors, NamesAndPatternsComeBeforeTheClass) {
  channel_scales();
  for (const std::string layer : {"0", "1"})
    tensors_.add("model.layers." + layer + ".mlp.down_proj.weight_scale", ElementType::kBf16, {1},
                 [](int64_t) { return 2; });
  tensors_.add(kQ + ".weight_scale", ElementType::kF32, {2, 3}, [](int64_t) { return 4; });
  const std::string groups =
      "\"group_0\": " + group(R"(["Linear"])", kChannel, kToken) + ", \"group_1\": " +
      group(R"(["re:.*down_proj", "re:.*no_such"])", R"({"num_bits": 8, "type": "float", "strategy": "tensor"})",
            kToken, "naive-quantized") +
      ", \"group_2\": " +
      group("[\"" + kQ + "\"]",
            R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x128"})",
            R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": true})");
  const OneLinear one = read(config(groups, R"(["lm_head"])", "", "mixed-precision"), kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  const PrecisionPlan& plan = one.quantization->plan;
  EXPECT_EQ(plan.linear(kQ).weight.describe(), "fp8_e4m3 per 128x128");
  EXPECT_EQ(plan.linear(kQ).activation.describe(), "fp8_e4m3 per 1x128");
  EXPECT_EQ(plan.linear(kDown).weight.describe(), "fp8_e4m3 per tensor");
  EXPECT_EQ(plan.linear("model.layers.0.mlp.up_proj").weight.describe(), "fp8_e4m3 per row");
  EXPECT_TRUE(one.noted("target of group_1 're:.*no_such' matches no module"));
}

TEST_F(CompressedTensors, IgnoreListsAreExactOrAnchoredPatterns) {
  channel_scales();
  wide("model.layers.0.mlp.down_proj");
  for (const std::string name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"})
    wide("model.layers.1." + name);
  const OneLinear one = read(config("\"group_0\": " + group(R"(["Linear"])", kChannel, kToken),
                                    R"(["lm_head", "re:.*mlp\\.gate$", "model.layers.0.mlp.down_proj", "re:.*nomatch.*",
                                        "re:.*layers\\.1\\.self.*_proj$", "model.layers.0.mlp.up_proj.linear", "re:.*norm"])"),
                             "model.layers.0.mlp.gate_proj");
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  const PrecisionPlan& plan = one.quantization->plan;
  for (const LinearModule& module : config_.linear_modules()) {
    const bool kept = module.role == Role::kHead || module.name == "model.layers.0.mlp.down_proj" ||
                      module.name.starts_with("model.layers.1.self_attn");
    EXPECT_EQ(plan.linear(module.name).weight.scaled(), !kept) << module.name;
  }
  EXPECT_TRUE(one.noted("ignore entry 're:.*mlp\\.gate$' matches no module"));
  EXPECT_TRUE(one.noted("'re:.*nomatch.*'"));
  EXPECT_TRUE(one.noted("'model.layers.0.mlp.up_proj.linear'"));
  EXPECT_FALSE(one.noted("norm'"));
}

TEST_F(CompressedTensors, Int8WeightsAndActivations) {
  tensors_ = small_tensors(config_, ElementType::kInt8);
  channel_scales();
  tensors_.bytes(kQ + ".weight")[1] = std::byte{0x80};  // -128 is a value that other writers use
  const std::string int_channel =
      R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "dynamic": false})";
  const std::string int_token =
      R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true})";
  const OneLinear one = read(
      config("\"group_0\": " + group(R"(["Linear"])", int_channel, int_token), R"(["lm_head"])", "", "int-quantized"),
      kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->format.describe(), "int8 per row");
  EXPECT_EQ(one.linear->view().at(0, 1), -128.0f);
  EXPECT_EQ(one.quantization->plan.linear(kQ).activation, row_format(ElementType::kInt8));
}

TEST_F(CompressedTensors, BadConfigsNameTheKey) {
  channel_scales();
  struct Bad {
    std::string json, part;
  };
  const auto weights = [&](std::string_view args) { return config("\"g\": " + group(R"(["Linear"])", args, kToken)); };
  const auto activations = [&](std::string_view args) {
    return config("\"g\": " + group(R"(["Linear"])", kChannel, args));
  };
  for (
      const Bad& bad : {
          Bad{R"({"quantization_config": {"quant_method": "compressed-tensors"}})", "config_groups"},
          Bad{config(R"("g": 3)"), "config_groups.g"},
          Bad{config("\"g\": " + group("3", kChannel, kToken)), "g.targets"},
          Bad{config("\"g\": " + group(R"(["re:["])", kChannel, kToken)), "re:["},
          Bad{config("\"g\": " + group(R"(["Linear"])", kChannel, kToken), R"(["re:*"])"), "re:*"},
          Bad{weights(R"({"num_bits": 4, "type": "float", "strategy": "channel"})"), "float-quantized for fp4_e2m1"},
          Bad{weights(R"({"num_bits": 3, "type": "int", "strategy": "channel"})"), "weights.num_bits"},
          Bad{weights(R"({"num_bits": 8, "type": "posit", "strategy": "channel"})"), "weights.type"},
          Bad{weights(R"({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": false})"), "symmetric"},
          Bad{weights(R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32})"),
              "weights.strategy"},
          Bad{weights(R"({"num_bits": 8, "type": "float", "strategy": "block"})"), "block_structure"},
          Bad{weights(R"({"num_bits": 8, "type": "int", "strategy": "channel"})"), "format"},
          Bad{weights(R"({"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": true})"), "dynamic"},
          Bad{activations(
                  R"({"num_bits": 8, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"})"),
              "input_activations.strategy"},
          Bad{activations(R"({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": "sometimes"})"),
              "dynamic"},
          Bad{activations(R"({"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": false})"),
              "input_activations.strategy"},
          Bad{activations(
                  R"({"num_bits": 8, "type": "float", "strategy": "group", "dynamic": true, "group_size": -5})"),
              "input_activations"},
          Bad{config("\"g\": " + group(R"(["Linear"])", kChannel, kToken), R"(["lm_head"])",
                     R"(, "sparsity_config": {"format": "sparse-24-bitmask"})"),
              "sparsity_config"},
          Bad{config("\"g\": " + group(R"(["Linear"])", kChannel, kToken), R"(["lm_head"])",
                     R"(, "transform_config": {"config_groups": {"u": {}}})"),
              "transform_config"},
          Bad{config("\"g\": " + group(R"(["Linear"])", kChannel, kToken, "pack-quantized")), "pack-quantized"},
      }) {
    const std::string error = read(bad.json, kQ).error();
    EXPECT_NE(error.find(bad.part), std::string::npos) << bad.json << "\n" << error;
  }
}

TEST_F(CompressedTensors, UnsupportedFormatsOfUnusedGroupsDoNotMatter) {
  channel_scales();
  const std::string groups = "\"group_0\": " + group(R"(["Linear"])", kChannel, kToken) + ", \"group_1\": " +
                             group(R"(["re:.*experts.*"])", R"({"num_bits": 4, "type": "int", "strategy": "channel"})",
                                   "null", "pack-quantized");
  const OneLinear one = read(config(groups, R"(["lm_head"])", "", "mixed-precision"), kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
}

TEST(OtherDialects, AreNamedTogetherWithTheSupportedOnes) {
  const ModelConfig config = small_config();
  const MemoryTensors tensors = small_tensors(config, ElementType::kBf16);
  struct Other {
    std::string json, name;
  };
  for (const Other& other : {
           Other{R"({"quant_method": "mxfp8"})", "mxfp8"},
           Other{R"({"quant_method": "fbgemm_fp8"})", "fbgemm_fp8"},
           Other{R"({"quant_method": "bitsandbytes"})", "bitsandbytes"},
       }) {
    const std::string error = read_one(R"({"quantization_config": )" + other.json + "}", config, tensors, kQ).error();
    EXPECT_NE(error.find(other.name), std::string::npos) << error;
    EXPECT_NE(error.find("compressed-tensors"), std::string::npos) << error;
  }
  EXPECT_NE(read_one(R"({"quantization_config": {"bits": 4}})", config, tensors, kQ).error().find("quant_method"),
            std::string::npos);
  EXPECT_NE(read_one(R"({"quantization_config": 3})", config, tensors, kQ).error(), "");
}

TEST(PlainCheckpoint, RunsAsBf16AndSaysWhatItWas) {
  const ModelConfig config = small_config();
  MemoryTensors tensors = small_tensors(config, ElementType::kBf16);
  tensors.add(kQ + ".weight", ElementType::kF32, {256, 320}, [](int64_t i) { return i == 7 ? NAN : float(i); });
  const OneLinear one = read_one("{}", config, tensors, kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.quantization->dialect, "none");
  EXPECT_EQ(one.quantization->plan.scheme, "checkpoint");
  EXPECT_EQ(one.quantization->plan.linear(kQ).weight, plain_format(ElementType::kBf16));
  EXPECT_EQ(one.linear->format, plain_format(ElementType::kF32));
  EXPECT_EQ(one.linear->view().at(1, 2), 322.0f);
  EXPECT_TRUE(one.noted("1 weights are stored as F32"));
  EXPECT_TRUE(one.noted(kQ + ".weight: 1 stored values are NaN or infinite"));
}

TEST(Bias, IsReadWhereTheConfigHasOne) {
  ModelConfig config = small_config();
  config.qkv_bias = true;
  MemoryTensors tensors = small_tensors(config, ElementType::kBf16);
  EXPECT_NE(read_one("{}", config, tensors, kQ).error().find("bias is missing"), std::string::npos);
  tensors.add(kQ + ".bias", ElementType::kBf16, {256}, [](int64_t i) { return double(i); });
  const OneLinear one = read_one("{}", config, tensors, kQ);
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  ASSERT_EQ(one.linear->bias->size(), 256u);
  EXPECT_EQ(one.linear->bias->at(255), 255.0f);
  EXPECT_TRUE(one.used.contains(kQ + ".bias"));
  tensors.add(kQ + ".bias", ElementType::kBf16, {255}, [](int64_t) { return 0; });
  EXPECT_NE(read_one("{}", config, tensors, kQ).error().find("[255]"), std::string::npos);
}

}  // namespace
}  // namespace octavo
