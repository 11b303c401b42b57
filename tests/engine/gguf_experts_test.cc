// A mixture of experts from a GGUF file answers as the folder that it was made from.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/checkpoint.h"
#include "checkpoint/container_support.h"
#include "checkpoint/convert.h"
#include "checkpoint/model_config_experts.h"
#include "engine/sequence.h"
#include "support/golden.h"

namespace octavo {
namespace {

constexpr uint32_t kBf16 = 30;

// The file of a folder of tests/data/tiny, in BF16.
class Converter {
 public:
  Converter(const Checkpoint& from, std::string arch) : from_(from), c_(from.config()), arch_(std::move(arch)) {}

  std::string bytes() {
    describe();
    tensor("token_embd", "model.embed_tokens");
    tensor("output_norm", "model.norm");
    tensor("output", "lm_head");
    for (int64_t i = 0; i < c_.num_layers; ++i) layer(i);
    return gguf_.bytes();
  }

 private:
  void u32(const std::string& key, int64_t value) { gguf_.u32(arch_ + "." + key, static_cast<uint32_t>(value)); }

  void describe() {
    gguf_.string("general.architecture", arch_);
    u32("context_length", c_.max_position);
    u32("embedding_length", c_.hidden_size);
    u32("block_count", c_.num_layers);
    u32("feed_forward_length", c_.intermediate_size);
    u32("attention.head_count", c_.num_heads);
    u32("attention.head_count_kv", c_.num_kv_heads);
    u32("attention.key_length", c_.head_dim);
    u32("attention.value_length", c_.head_dim);
    u32("rope.dimension_count", c_.head_dim);
    u32("expert_count", c_.experts->count);
    u32("expert_used_count", c_.experts->per_token);
    if (arch_ != "llama") u32("expert_feed_forward_length", c_.experts->intermediate_size);
    gguf_.f32(arch_ + ".attention.layer_norm_rms_epsilon", c_.rms_norm_eps);
    gguf_.f32(arch_ + ".rope.freq_base", static_cast<float>(c_.rope.theta));
  }

  std::string data(const std::string& name) const {
    const TensorView& view = *from_.tensors().find(name + ".weight")->plain;
    return {reinterpret_cast<const char*>(view.data.data()), view.data.size()};
  }
  std::vector<int64_t> dims(const std::string& name) const {
    const Shape& shape = from_.tensors().find(name + ".weight")->shape;
    return {shape.rbegin(), shape.rend()};
  }
  void tensor(const std::string& name, const std::string& from) {
    gguf_.tensor(name + ".weight", dims(from), kBf16, data(from));
  }
  // Pairs of a head's rotation side by side, as files of the llama architecture have them.
  void rotated(const std::string& name, const std::string& from) {
    const std::string rows = data(from);
    const auto row_bytes = static_cast<size_t>(c_.hidden_size * 2), head = static_cast<size_t>(c_.head_dim);
    std::string out;
    for (size_t first = 0; first * row_bytes < rows.size(); first += head)
      for (size_t i = 0; i < head; ++i) out += rows.substr((first + i / 2 + (i % 2) * head / 2) * row_bytes, row_bytes);
    gguf_.tensor(name + ".weight", dims(from), kBf16, out);
  }

  void layer(int64_t i) {
    const std::string blk = fmt::format("blk.{}.", i), hub = fmt::format("model.layers.{}.", i);
    tensor(blk + "attn_norm", hub + "input_layernorm");
    tensor(blk + "ffn_norm", hub + "post_attention_layernorm");
    for (const std::string part : {"q", "k"})
      arch_ == "llama" ? rotated(blk + "attn_" + part, hub + "self_attn." + part + "_proj")
                       : tensor(blk + "attn_" + part, hub + "self_attn." + part + "_proj");
    tensor(blk + "attn_v", hub + "self_attn.v_proj");
    tensor(blk + "attn_output", hub + "self_attn.o_proj");
    if (c_.qk_norm) {
      tensor(blk + "attn_q_norm", hub + "self_attn.q_norm");
      tensor(blk + "attn_k_norm", hub + "self_attn.k_norm");
    }
    if (!c_.has_experts(i)) {
      for (const std::string part : {"gate", "up", "down"}) tensor(blk + "ffn_" + part, hub + "mlp." + part + "_proj");
      return;
    }
    const ExpertNames& names = expert_names(c_.model_type);
    tensor(blk + "ffn_gate_inp", hub + std::string(names.router));
    const std::pair<const char*, std::string_view> parts[] = {
        {"ffn_gate_exps", names.gate}, {"ffn_up_exps", names.up}, {"ffn_down_exps", names.down}};
    for (const auto& [name, part] : parts) {
      std::string all;
      std::vector<int64_t> shape;
      for (int64_t e = 0; e < c_.experts->count; ++e) {
        const std::string own = fmt::format("{}{}.{}.{}", hub, names.experts, e, part);
        all += data(own);
        shape = dims(own);
      }
      shape.push_back(c_.experts->count);
      gguf_.tensor(blk + name + ".weight", shape, kBf16, all);
    }
  }

  const Checkpoint& from_;
  const ModelConfig& c_;
  std::string arch_;
  GgufBuilder gguf_;
};

std::vector<float> logits_of(const std::filesystem::path& path, const std::string& scheme,
                             const std::vector<int32_t>& ids) {
  ModelOptions options{.text = false};
  options.plan.scheme = scheme;
  auto model = Model::load(path, options);
  if (!model) {
    ADD_FAILURE() << model.error().message();
    return {};
  }
  PagePool kv = (*model)->make_kv_cache(std::ssize(ids));
  Sequence sequence(**model, kv);
  std::vector<float> logits;
  const auto keep = [&](int64_t, const float* rows, int64_t count, int64_t stride) {
    for (int64_t i = 0; i < count; ++i)
      logits.insert(logits.end(), rows + i * stride, rows + i * stride + (*model)->config().vocab_size);
  };
  EXPECT_TRUE(sequence.feed_all_logits(ids, keep, std::ssize(ids)).has_value());
  return logits;
}

TEST(GgufExperts, AnswerAsTheFolderDoes) {
  for (const auto& [name, arch] : {std::pair{"mixtral", "llama"}, {"qwen3_moe", "qwen3moe"}}) {
    SCOPED_TRACE(name);
    const std::string folder = test_data(std::string("tiny/") + name);
    const auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint.has_value());
    const TestFolder out;
    write_bytes(out / "m.gguf", Converter(*checkpoint, arch).bytes());
    const std::vector<int32_t> ids = Golden(folder + "/golden.safetensors").ints("input_ids");
    for (const std::string scheme : {"float32", "fp8"}) {
      const std::vector<float> wanted = logits_of(folder, scheme, ids), found = logits_of(out / "m.gguf", scheme, ids);
      ASSERT_EQ(wanted.size(), found.size());
      EXPECT_EQ(std::memcmp(wanted.data(), found.data(), wanted.size() * sizeof(float)), 0) << scheme;
    }
    // And so does the folder that it is converted back to.
    auto converted = convert_to_bf16_folder(out / "m.gguf", out / "folder");
    ASSERT_TRUE(converted.has_value()) << converted.error().message();
    ASSERT_TRUE(converted->folder.finish().has_value());
    EXPECT_EQ(logits_of(out / "folder", "float32", ids), logits_of(folder, "float32", ids));
  }
}

}  // namespace
}  // namespace octavo
