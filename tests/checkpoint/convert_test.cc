// GGUF -> BF16 folder: the same values rounded once, a config that reads back, and nothing left behind by a failure.
#include "checkpoint/convert.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/container_support.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

std::filesystem::path gguf_file(const std::string& type) {
  return kTestData / "quantized" / ("gguf_" + type) / "model.gguf";
}

std::vector<float> values_of(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  const auto values = checkpoint.wide(name, shape);
  EXPECT_TRUE(values) << values.error().message();
  return values.value_or(std::vector<float>{});
}

TEST(Convert, EveryTypeGivesItsValuesRoundedToBf16) {
  for (const char* type : {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}) {
    SCOPED_TRACE(type);
    const TestFolder folder;
    int64_t reported = 0;
    auto summary = convert_to_bf16_folder(gguf_file(type), folder / "out", [&](const ConvertProgress& progress) {
      EXPECT_GT(progress.bytes_done, reported);
      EXPECT_LE(progress.bytes_done, progress.bytes_total);
      reported = progress.bytes_done;
    });
    ASSERT_TRUE(summary) << summary.error().message();
    EXPECT_EQ(reported, summary->bytes_after);
    EXPECT_EQ(summary->tensors, 21);
    EXPECT_EQ(summary->parameters * 2, summary->bytes_after);
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    ASSERT_TRUE(summary->folder.finish());

    const auto before = Checkpoint::open(gguf_file(type));
    const auto after = Checkpoint::open(folder / "out");
    ASSERT_TRUE(after) << after.error().message();
    EXPECT_EQ(after->config(), before->config());
    for (const auto& [name, shape] : model_tensors(after->config())) {
      std::vector<float> want = values_of(*before, name, shape);
      for (float& value : want) value = Bf16::decode(Bf16::encode(value));
      ASSERT_EQ(values_of(*after, name, shape), want) << name;
      EXPECT_EQ(after->tensors().find(name)->stored_type, "BF16");
    }
    const auto unused = after->unused();
    ASSERT_TRUE(unused) << unused.error().message();
    EXPECT_TRUE(unused->empty());
  }
}

TEST(Convert, TokenIdsGoIntoTheGenerationConfig) {
  const TestFolder folder;
  GgufBuilder file;
  file.string("general.architecture", "llama").u32("llama.context_length", 64).u32("llama.embedding_length", 4);
  file.u32("llama.block_count", 1).u32("llama.feed_forward_length", 4).u32("llama.attention.head_count", 1);
  file.u32("tokenizer.ggml.bos_token_id", 1)
      .u32("tokenizer.ggml.eos_token_id", 2)
      .u32("tokenizer.ggml.padding_token_id", 0);
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::vector<float> four(4, 1.0f), sixteen(16, 0.5f);
  file.floats("token_embd.weight", {4, 4}, sixteen).floats("output_norm.weight", {4}, four);
  for (const char* norm : {"attn_norm", "ffn_norm"}) file.floats(std::string("blk.0.") + norm + ".weight", {4}, four);
  for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    file.floats(std::string("blk.0.") + part + ".weight", {4, 4}, sixteen);
  write_bytes(folder / "m.gguf", file.bytes());
  auto summary = convert_to_bf16_folder(folder / "m.gguf", folder / "out");
  ASSERT_TRUE(summary) << summary.error().message();
  ASSERT_TRUE(summary->folder.finish());
  const auto converted = Checkpoint::open(folder / "out");
  ASSERT_TRUE(converted) << converted.error().message();
  EXPECT_EQ(converted->generation_config().eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(converted->generation_config().bos_token_id, 1);
  EXPECT_TRUE(converted->config().tied_embeddings);

  // A NaN in a weight, and a tensor nobody knows: errors that name them, and no folder.
  const auto refused = [&](GgufBuilder bad, const std::string& name) {
    write_bytes(folder / "bad.gguf", bad.bytes());
    const auto result = convert_to_bf16_folder(folder / "bad.gguf", folder / "other");
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message().find(name), std::string::npos) << result.error().message();
    for (const auto& item : std::filesystem::directory_iterator(folder.path()))
      EXPECT_EQ(item.path().string().find("other"), std::string::npos) << item.path();
  };
  GgufBuilder extra = file;
  refused(extra.floats("blk.0.attn_sinks.weight", {1}, {1}), "blk.0.attn_sinks.weight");
  GgufBuilder nan = file;
  const float bad = std::numeric_limits<float>::quiet_NaN();
  nan.data.replace(nan.data.size() - 8, 4, raw(bad));  // in the last tensor
  refused(nan, "model.layers.0.mlp.down_proj.weight");
}

TEST(Convert, AnUnfinishedFolderDisappears) {
  const TestFolder folder;
  {
    const auto summary = convert_to_bf16_folder(gguf_file("q8_0"), folder / "out");
    ASSERT_TRUE(summary);
    EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Convert, AFullDiskIsAnErrorAndLeavesNothing) {
  const TestFolder folder;
  const auto on_a_small_disk = [&] {
    const rlimit limit{100000, 100000};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto summary = convert_to_bf16_folder(gguf_file("q8_0"), folder / "out");
    const bool right = !summary && summary.error().message().find("cannot write") != std::string::npos;
    std::_Exit(right && std::filesystem::is_empty(folder.path()) ? 0 : 1);
  };
  EXPECT_EXIT(on_a_small_disk(), ::testing::ExitedWithCode(0), "");
}

TEST(Convert, OnlyFromGguf) {
  const TestFolder folder;
  const auto result = convert_to_bf16_folder(kTestData / "tiny" / "llama_tied", folder / "out");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("GGUF"), std::string::npos);
}

class Output : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder / "model/sub");
    std::filesystem::create_directories(folder / "empty");
    std::filesystem::create_directories(folder / "full");
    write_bytes(folder / "full" / "x", "x");
    write_bytes(folder / "file", "x");
    std::filesystem::create_directory_symlink(folder / "model", folder / "link");
  }
  std::string refusal(const std::string& model, const std::string& out) {
    const auto result = check_output(folder / model, folder / out);
    return result ? "" : result.error().message();
  }
  TestFolder folder;
};

TEST_F(Output, WhereAModelMayBeWritten) {
  EXPECT_EQ(refusal("model", "new"), "");
  EXPECT_EQ(refusal("model", "new/"), "");
  EXPECT_EQ(refusal("model", "empty"), "");
  EXPECT_EQ(refusal("model", "model2"), "");
  EXPECT_EQ(refusal("file", "new"), "");
  const auto expect = [&](const char* model, const char* out, const char* reason) {
    EXPECT_NE(refusal(model, out).find(reason), std::string::npos)
        << model << " -> " << out << ": " << refusal(model, out);
  };
  expect("model", "model", "the same");
  expect("model", "model/", "the same");
  expect("model", "empty/../model", "the same");
  expect("model", "link", "the same");
  expect("link", "model", "the same");
  expect("file", "file", "the same");
  expect("model", "model/sub", "inside");
  expect("model", "model/new", "inside");
  expect("model", "link/new", "inside");
  expect("model", "full", "not empty");
  expect("model/sub", "model", "not empty");
  expect("model", "file", "not a folder");
  expect("model", "no/new", "does not exist");
}

TEST_F(Output, RelativePaths) {
  const auto in_the_folder = [&] {
    std::filesystem::current_path(folder.path());
    const bool refused =
        !check_output("model", "model") && !check_output("model", "./model/new") && !check_output("model", "full");
    auto output = OutputFolder::create("model", "new");
    const bool made = output && output->finish() && std::filesystem::is_directory("new");
    std::_Exit(refused && made ? 0 : 1);
  };
  EXPECT_EXIT(in_the_folder(), ::testing::ExitedWithCode(0), "");
}

TEST_F(Output, AppearsWholeOrNotAtAll) {
  {
    auto output = OutputFolder::create(folder / "model", folder / "empty");
    ASSERT_TRUE(output) << output.error().message();
    write_bytes(output->path() / "y", "y");
    EXPECT_TRUE(std::filesystem::is_empty(folder / "empty"));
    ASSERT_TRUE(output->finish());
    EXPECT_EQ(read_bytes(folder / "empty" / "y"), "y");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "empty" / "y"));
}

}  // namespace
}  // namespace octavo
