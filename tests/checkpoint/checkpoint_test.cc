// Checkpoint: opening folders, shape checks, accounting of every tensor, tied heads.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "base/file.h"
#include "checkpoint/container_support.h"
#include "checkpoint/safetensors_writer.h"

namespace octavo {
namespace {

const std::filesystem::path kTiny = kTestData / "tiny";
// Takes everything a decoder takes.
void use_all(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  for (const LinearModule& module : config.linear_modules()) {
    const auto linear = checkpoint.linear(module.name);
    ASSERT_TRUE(linear) << linear.error().message();
    EXPECT_EQ(linear->rows, module.rows);
    EXPECT_EQ(linear->cols, module.cols);
  }
  const auto wide = [&](const std::string& name, const Shape& shape) {
    const auto values = checkpoint.wide(name, shape);
    ASSERT_TRUE(values) << values.error().message();
  };
  ASSERT_TRUE(checkpoint.entry("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}));
  wide("model.norm.weight", {config.hidden_size});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    wide(layer + ".input_layernorm.weight", {config.hidden_size});
    wide(layer + ".post_attention_layernorm.weight", {config.hidden_size});
    if (config.qk_norm) {
      wide(layer + ".self_attn.q_norm.weight", {config.head_dim});
      wide(layer + ".self_attn.k_norm.weight", {config.head_dim});
    }
  }
}

TEST(Checkpoint, EveryTensorOfEveryModelIsUsed) {
  for (const char* name : kTinyModels) {
    SCOPED_TRACE(name);
    const auto checkpoint = Checkpoint::open(kTiny / name);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    EXPECT_EQ(checkpoint->dialect(), "none");
    EXPECT_FALSE(checkpoint->is_gguf());
    use_all(*checkpoint);
    const auto unused = checkpoint->unused();
    ASSERT_TRUE(unused) << unused.error().message();
    EXPECT_TRUE(unused->empty());
  }
}

struct Stored {
  ElementType element;
  Shape shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Stored>;

// A copy of a tiny model with its config and tensors changed.
class EditedModel {
 public:
  explicit EditedModel(const std::string& name) : config(*read_text_file(kTiny / name / "config.json")) {
    const auto original = Checkpoint::open(kTiny / name);
    for (const TensorEntry& entry : original->tensors().entries()) {
      const auto data = entry.plain->data;
      tensors[entry.name] = {entry.plain->element, entry.shape,
                             std::string(reinterpret_cast<const char*>(data.data()), data.size())};
    }
  }

  void replace_in_config(const std::string& from, const std::string& to) {
    const size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    config.replace(at, from.size(), to);
  }

  // Every tensor in another type.
  void store_as(ElementType element) {
    for (auto& [name, tensor] : tensors) {
      const auto count = tensor.bytes.size() * 8 / static_cast<size_t>(element_bits(tensor.element));
      std::string bytes(count * static_cast<size_t>(element_bits(element)) / 8, '\0');
      for (size_t i = 0; i < count; ++i)
        store_element(element, bytes.data(), i, load_element(tensor.element, tensor.bytes.data(), i));
      tensor = {element, tensor.shape, std::move(bytes)};
    }
  }

  Result<Checkpoint> open() {
    write(tensors, "model.safetensors");
    write_bytes(folder / "config.json", config);
    return Checkpoint::open(folder.path());
  }

  void write(const Tensors& some, const std::string& file) {
    std::vector<TensorToWrite> layout;
    for (const auto& [name, tensor] : some) layout.push_back({name, tensor.element, tensor.shape});
    auto writer = SafetensorsWriter::create(folder / file, layout);
    ASSERT_TRUE(writer) << writer.error().message();
    for (const auto& [name, tensor] : some) ASSERT_TRUE(writer->write(name, 0, std::as_bytes(std::span(tensor.bytes))));
    ASSERT_TRUE(writer->commit());
  }

  std::string open_error() {
    const auto checkpoint = open();
    return checkpoint ? "" : checkpoint.error().message();
  }

  TestFolder folder;
  std::string config;
  Tensors tensors;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
bool any_contains(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return contains(text, part); });
}

TEST(Checkpoint, GgufOfEveryTypeIsUsedWhole) {
  for (const char* type : {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}) {
    SCOPED_TRACE(type);
    const auto checkpoint = Checkpoint::open(kTestData / "quantized" / (std::string("gguf_") + type) / "model.gguf");
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    EXPECT_EQ(checkpoint->dialect(), "gguf");
    EXPECT_TRUE(checkpoint->is_gguf());
    use_all(*checkpoint);
    const auto unused = checkpoint->unused();
    ASSERT_TRUE(unused) << unused.error().message();
    EXPECT_TRUE(unused->empty());
  }
}

// Q8_0 and Q4_0 stay codes and scales; their values are those that the blocks decode to. Others run as BF16.
TEST(Checkpoint, GgufBlocksOfIntegersStayAsTheyAre) {
  const std::map<std::string, TensorFormat> types = {{"q8_0", group_format(ElementType::kInt8, 32, ElementType::kF16)},
                                                     {"q4_0", group_format(ElementType::kInt4, 32, ElementType::kF16)},
                                                     {"q4_1", plain_format(ElementType::kBf16)},
                                                     {"bf16", plain_format(ElementType::kBf16)}};
  for (const auto& [type, format] : types) {
    SCOPED_TRACE(type);
    const auto checkpoint = Checkpoint::open(kTestData / "quantized" / ("gguf_" + type) / "model.gguf");
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    int as_stored = 0;
    for (const LinearModule& module : checkpoint->config().linear_modules()) {
      const auto linear = checkpoint->linear(module.name);
      ASSERT_TRUE(linear) << linear.error().message();
      const LinearPlan& plan = checkpoint->stored_plan().linear(module.name);
      EXPECT_EQ(plan.activation, plain_format(ElementType::kBf16));
      if (!plan.weight.scaled()) continue;  // llama.cpp keeps some tensors wider
      ++as_stored;
      EXPECT_EQ(plan.weight, format) << module.name;
      EXPECT_EQ(linear->format, format) << module.name;
      std::vector<float> values(static_cast<size_t>(module.rows * module.cols));
      ASSERT_TRUE(checkpoint->tensors().read_f32(*linear->entry, 0, module.rows, values));
      EXPECT_EQ(dequantize(linear->view()), values) << module.name;
    }
    EXPECT_EQ(as_stored > 0, format.scaled());
  }
}

TEST(Checkpoint, Fp32AndFp16CheckpointsLoad) {
  for (const ElementType element : {ElementType::kF32, ElementType::kF16}) {
    EditedModel model("llama_untied_hd64");
    model.store_as(element);
    const auto checkpoint = model.open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    use_all(*checkpoint);
    EXPECT_EQ(checkpoint->linear("lm_head")->format.element, element);
    EXPECT_TRUE(checkpoint->unused()->empty());
  }
}

TEST(Checkpoint, ShardsWithAnIndex) {
  EditedModel model("llama_tied");
  Tensors first, second;
  std::string map;
  for (const auto& [name, tensor] : model.tensors) {
    const bool early = (first.size() + second.size()) % 2 == 0;
    (early ? first : second)[name] = tensor;
    map += std::string(map.empty() ? "" : ",") + "\"" + name + "\":\"" + (early ? "a" : "b") + ".safetensors\"";
  }
  model.write(first, "a.safetensors");
  model.write(second, "b.safetensors");
  write_bytes(model.folder / "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  write_bytes(model.folder / "config.json", model.config);
  const auto checkpoint = Checkpoint::open(model.folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  use_all(*checkpoint);
  EXPECT_TRUE(checkpoint->unused()->empty());
}

TEST(Checkpoint, WrongAndMissingTensorsAreNamed) {
  EditedModel wrong("llama_tied");
  wrong.tensors["model.layers.1.mlp.up_proj.weight"].shape = {96, 160};
  const std::string message = wrong.open_error();
  for (const char* part : {"model.layers.1.mlp.up_proj.weight", "[96, 160]", "[160, 96]"})
    EXPECT_TRUE(contains(message, part)) << message;

  EditedModel missing("llama_tied");
  missing.tensors.erase("model.layers.2.self_attn.o_proj.weight");
  EXPECT_TRUE(contains(missing.open_error(), "model.layers.2.self_attn.o_proj")) << missing.open_error();

  EditedModel norm("llama_tied");
  norm.tensors.erase("model.norm.weight");
  const auto checkpoint = norm.open();
  ASSERT_TRUE(checkpoint);
  EXPECT_TRUE(contains(checkpoint->wide("model.norm.weight", {96}).error().message(), "model.norm.weight"));
  const auto shape = checkpoint->entry("model.embed_tokens.weight", {320, 95});
  ASSERT_FALSE(shape);
  for (const char* part : {"model.embed_tokens.weight", "[320, 96]", "[320, 95]"})
    EXPECT_TRUE(contains(shape.error().message(), part)) << shape.error().message();
}

TEST(Checkpoint, NanAndInfinityInNormsAreErrors) {
  for (const uint16_t bad : {0x7FC0, 0x7F80, 0xFF80}) {
    EditedModel model("llama_tied");
    std::memcpy(model.tensors["model.layers.0.input_layernorm.weight"].bytes.data() + 10, &bad, 2);
    const auto checkpoint = model.open();
    ASSERT_TRUE(checkpoint);
    const auto norm = checkpoint->wide("model.layers.0.input_layernorm.weight", {96});
    ASSERT_FALSE(norm);
    EXPECT_TRUE(contains(norm.error().message(), "model.layers.0.input_layernorm.weight"));
    EXPECT_TRUE(contains(norm.error().message(), "element 5")) << norm.error().message();
  }
}

TEST(Checkpoint, Fp8WithoutAScaleIsAnError) {
  EditedModel model("llama_tied");
  Stored& weight = model.tensors["model.layers.0.mlp.up_proj.weight"];
  weight = {ElementType::kE4m3, weight.shape, std::string(weight.bytes.size() / 2, '\x38')};
  EXPECT_TRUE(contains(model.open_error(), "model.layers.0.mlp.up_proj")) << model.open_error();
  EditedModel norm("llama_tied");
  norm.tensors["model.norm.weight"] = {ElementType::kE4m3, {96}, std::string(96, '\x38')};
  EXPECT_TRUE(contains(norm.open()->wide("model.norm.weight", {96}).error().message(), "F8_E4M3"));
}

TEST(Checkpoint, KnownExtrasAreReportedWithTheReason) {
  EditedModel model("llama_tied");
  const Stored vector{ElementType::kF32, {1}, std::string(4, '\0')};
  const std::map<std::string, std::string> extras = {
      {"model.layers.0.self_attn.rotary_emb.inv_freq", "computed"},
      {"model.layers.3.enorm.weight", "past the 3 layers"},
      {"model.layers.11.mlp.up_proj.weight", "past the 3 layers"},
      {"model.layers.1.self_attn.q_scale", "KV cache"},
      {"model.layers.1.mlp.up_proj.weight_shape", "shape"},
  };
  for (const auto& [name, why] : extras) model.tensors[name] = vector;
  const auto checkpoint = model.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  use_all(*checkpoint);
  const auto unused = checkpoint->unused();
  ASSERT_TRUE(unused) << unused.error().message();
  ASSERT_EQ(unused->size(), extras.size());
  for (const auto& [name, why] : *unused) EXPECT_TRUE(contains(why, extras.at(name))) << name << ": " << why;
}

TEST(Checkpoint, ATensorThatNobodyKnowsIsAnErrorWithItsFile) {
  for (const char* name :
       {"model.layers.1.self_attn.q_proj.bias", "model.layers.1.mlp.up_proj.weight_scale", "model.layers.01x.inv_freq",
        "lm_head.weight_scale.x", "model.layers.1.self_attn.k_norm.weight", "model.layers.1.self_attn.sinks",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"}) {
    EditedModel model("llama_untied_hd64");
    model.tensors[name] = {ElementType::kF32, {1}, std::string(4, '\0')};
    const auto checkpoint = model.open();
    if (!checkpoint) {  // found already when the quantization was read
      EXPECT_TRUE(contains(checkpoint.error().message(), name)) << checkpoint.error().message();
      continue;
    }
    use_all(*checkpoint);
    const auto unused = checkpoint->unused();
    ASSERT_FALSE(unused) << name;
    EXPECT_TRUE(contains(unused.error().message(), name)) << unused.error().message();
    EXPECT_TRUE(contains(unused.error().message(), "model.safetensors")) << unused.error().message();
  }
}

TEST(TiedHead, TheEmbeddingIsTheHead) {
  const auto checkpoint = Checkpoint::open(kTiny / "llama_tied");
  const auto head = checkpoint->linear("lm_head");
  ASSERT_TRUE(head) << head.error().message();
  EXPECT_EQ(head->entry, checkpoint->tensors().find("model.embed_tokens.weight"));
}

TEST(TiedHead, ACopyIsReportedAndAContradictionNoted) {
  EditedModel model("llama_tied");
  model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"];
  auto checkpoint = model.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  use_all(*checkpoint);
  EXPECT_FALSE(any_contains(checkpoint->notes(), "differs"));
  ASSERT_EQ(checkpoint->unused()->size(), 1u);
  EXPECT_EQ(checkpoint->unused()->front().name, "lm_head.weight");

  model.tensors["lm_head.weight"].bytes[1000] ^= 1;
  checkpoint = model.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  use_all(*checkpoint);
  EXPECT_TRUE(any_contains(checkpoint->notes(), "lm_head.weight differs from the embedding"));
  EXPECT_EQ(checkpoint->linear("lm_head")->entry->name, "model.embed_tokens.weight");
}

TEST(TiedHead, FlagUnderTextConfigCounts) {
  EditedModel model("llama_tied");
  model.replace_in_config("\"tie_word_embeddings\": true", "\"text_config\": {\"tie_word_embeddings\": true}");
  const auto checkpoint = model.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  EXPECT_TRUE(checkpoint->config().tied_embeddings);
}

TEST(TiedHead, FlagFalseButHeadMissing) {
  EditedModel model("llama_tied");
  model.replace_in_config("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  const std::string message = model.open_error();
  EXPECT_TRUE(contains(message, "lm_head.weight")) << message;
  EXPECT_TRUE(contains(message, "tie_word_embeddings")) << message;
}

TEST(Checkpoint, GenerationConfigIsUnitedWithTheModelsIds) {
  EditedModel model("llama_tied");
  write_bytes(model.folder / "generation_config.json", R"({"eos_token_id":[7,2],"temperature":0.5})");
  const auto checkpoint = model.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->generation_config().eos_token_ids, (std::vector<int64_t>{7, 2}));
  EXPECT_EQ(checkpoint->generation_config().bos_token_id, 1);
  EXPECT_EQ(checkpoint->generation_config().temperature, 0.5f);
  write_bytes(model.folder / "generation_config.json", "{");
  EXPECT_TRUE(contains(model.open_error(), "generation_config.json"));
}

TEST(Checkpoint, WhatIsNotAModel) {
  const TestFolder folder;
  EXPECT_TRUE(contains(Checkpoint::open(folder / "absent").error().message(), "absent"));
  EXPECT_TRUE(contains(Checkpoint::open(folder.path()).error().message(), "config.json"));
  write_bytes(folder / "model.gguf", "GGUF");
  EXPECT_TRUE(contains(Checkpoint::open(folder.path()).error().message(), "model.gguf"));
  EXPECT_FALSE(Checkpoint::open(folder / "model.gguf"));
}

TEST(Checkpoint, QuantizationMayStandInAFileOfItsOwn) {
  EditedModel model("llama_tied");
  write_bytes(model.folder / "hf_quant_config.json", R"({"quantization": {"quant_algo": "FP7"}})");
  EXPECT_TRUE(contains(model.open_error(), "FP7"));
  write_bytes(model.folder / "hf_quant_config.json", R"({"quantization": []})");
  EXPECT_TRUE(contains(model.open_error(), "hf_quant_config.json"));
  write_bytes(model.folder / "hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  const auto checkpoint = model.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  EXPECT_EQ(checkpoint->dialect(), "modelopt");
}
}  // namespace
}  // namespace octavo
