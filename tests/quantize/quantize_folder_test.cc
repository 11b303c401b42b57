// The folders that a quantization reads and writes: tensors that do not belong together, other runs, space.
#include <algorithm>
#include <fstream>

#include "calibrated_folder.h"
#include "checkpoint/output_folder.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class QuantizeFolder : public CalibratedFolder {};

TEST_F(QuantizeFolder, WhatAKilledRunLeftGoesAndTwoRunsAtOnceAreRefused) {
  make();
  const QuantizeOptions options{.plan = {.scheme = "fp8"}};
  fs::create_directories(folder_ / "out.writing" / "model");
  std::ofstream(folder_ / "out.writing" / "model" / "model.safetensors.tmp.1") << "half a file";
  ASSERT_TRUE(run("out", options).has_value());
  EXPECT_EQ(siblings(), (std::set<std::string>{"model", "out", "text.txt"}));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "model.safetensors.tmp.1"));
  {
    const auto other = OutputFolder::create(model_, folder_ / "busy");
    ASSERT_TRUE(other.has_value());
    EXPECT_NE(error_of(options, "busy").find("another run is writing this output"), std::string::npos);
    EXPECT_TRUE(fs::exists(other->path())) << "the other run's folder was taken away";
  }
  EXPECT_TRUE(run("busy", options).has_value());
}

// The same tensors that the loader demands, no fewer and no others.
TEST_F(QuantizeFolder, MissingAndStrayTensorsAreRefused) {
  const QuantizeOptions options{.plan = {.scheme = "fp8"}};
  const auto rewrite = [&](const std::function<void(std::vector<TensorToWrite>&)>& change) {
    fs::remove_all(model_);
    make();
    const Checkpoint source = open_model(model_);
    std::vector<TensorToWrite> layout;
    for (const TensorEntry& entry : source.tensors().entries())
      layout.push_back({entry.name, entry.plain->element, entry.shape});
    change(layout);
    auto writer = SafetensorsWriter::create(folder_ / "model.safetensors", layout);
    ASSERT_TRUE(writer.has_value());
    for (const TensorToWrite& tensor : layout) {
      const TensorEntry* entry = source.tensors().find(tensor.name);
      const std::vector<std::byte> zeros(static_cast<size_t>(tensor.shape.size() == 1 ? tensor.shape[0] * 2 : 0));
      ASSERT_TRUE(writer->write(tensor.name, 0, entry != nullptr ? entry->plain->data : std::span(zeros)).has_value());
    }
    ASSERT_TRUE(writer->commit().has_value());
    fs::rename(folder_ / "model.safetensors", model_ / "model.safetensors");
  };
  const std::string norm = "model.layers.1.post_attention_layernorm.weight";
  rewrite([&](auto& layout) { std::erase_if(layout, [&](const auto& tensor) { return tensor.name == norm; }); });
  EXPECT_NE(error_of(options, "out").find(norm), std::string::npos);
  for (const std::string stray : {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.extra_norm.weight"}) {
    rewrite([&](auto& layout) { layout.push_back({stray, ElementType::kBf16, {256}}); });
    EXPECT_NE(error_of(options, "out").find(stray), std::string::npos) << stray;
  }
  EXPECT_EQ(siblings(), (std::set<std::string>{"model", "text.txt"}));
  // Known extras are copied, and said.
  const std::string extra = "model.layers.0.self_attn.rotary_emb.inv_freq";
  rewrite([&](auto& layout) { layout.push_back({extra, ElementType::kBf16, {32}}); });
  const auto summary = run("out", options);
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  EXPECT_NE(summary->notes[0].find(extra), std::string::npos);
  EXPECT_NE(open_model(folder_ / "out").tensors().find(extra), nullptr);
}

TEST_F(QuantizeFolder, ATiedModelWithAnotherHeadSaysWhichOneCounts) {
  make();  // untied: with a head of its own
  std::string tied = read_text_file(model_ / "config.json").value();
  tied.replace(tied.find("\"tie_word_embeddings\": false"), 28, "\"tie_word_embeddings\": true");
  ASSERT_TRUE(write_text_file(model_ / "config.json", tied).has_value());
  const auto summary = run("out", {.plan = {.scheme = "fp8"}});
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  const auto says = [&](const std::string& text) {
    return std::any_of(summary->notes.begin(), summary->notes.end(),
                       [&](const std::string& note) { return note.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(says("lm_head.weight differs from the embedding"));
  EXPECT_TRUE(says("lm_head.weight is left out"));
  EXPECT_EQ(open_model(folder_ / "out").tensors().find("lm_head.weight"), nullptr);
}

TEST_F(QuantizeFolder, TooLittleSpaceIsSaidWithARemedy) {
  const auto refused = check_space(folder_ / "out", int64_t{1} << 62);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().where, folder_.path().string());
  EXPECT_NE(refused.error().remedy, "");
  EXPECT_TRUE(check_space(folder_ / "out", 1).has_value());
}

}  // namespace
}  // namespace octavo
