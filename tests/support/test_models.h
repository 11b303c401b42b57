// Small model folders that tests write themselves: a byte-level tokenizer, and a model that follows a script.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors_writer.h"
#include "engine/model.h"
#include "support/byte_tokenizer_json.h"
#include "support/golden.h"
#include "support/test_folder.h"
#include "text/utf8.h"

namespace octavo {

inline std::unique_ptr<Model> load_test_model(const std::filesystem::path& path, const std::string& scheme,
                                              int threads = 1, std::optional<Isa> isa = std::nullopt,
                                              const std::string& kv = "") {
  ModelOptions options;
  options.plan.scheme = scheme;
  options.plan.kv_cache_dtype = kv;
  options.threads = threads;
  options.isa = isa;
  auto model = Model::load(path, options);
  if (!model) throw std::runtime_error(model.error().message());
  return std::move(*model);
}

// A model of tests/data/tiny with a byte tokenizer of its vocabulary.
class TinyModelFolder {
 public:
  explicit TinyModelFolder(const std::string& name, int64_t vocab = 320) {
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::create_symlink(test_data("tiny/" + name + "/" + file), folder_.path() / file);
    folder_.write("tokenizer.json", byte_tokenizer_json({}, vocab, {1, 2}));
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TestFolder folder_;
};

// A Llama whose next token is a fixed function of the last one: identity embedding, all layers zero, and a head that
// maps each token to its successor (itself where the script says nothing). Greedy output is any script one likes; the
// chosen logit is about 22.6, all others 0.
class ScriptModel {
 public:
  static constexpr int64_t kRows = 512;    // of embedding and head
  static constexpr int64_t kTokens = 500;  // of the tokenizer
  static constexpr TokenId kEnd = 499;
  static constexpr const char* kEndOfText = "<end>";

  // Each script is a chain of token texts; a token may stand in one place only. Single bytes are the byte tokens.
  // `wild`: head rows with a logit of 1000 for every token, for ids that no tokenizer knows.
  explicit ScriptModel(const std::vector<std::vector<std::string>>& scripts, int64_t context = 256,
                       const std::vector<int64_t>& wild = {}) {
    for (const auto& script : scripts)
      for (const std::string& text : script)
        if (text.size() != 1 && text != kEndOfText && !ids_.contains(text)) {
          ids_[text] = static_cast<TokenId>(256 + more_.size());
          more_.push_back(text);
        }
    std::vector<TokenId> next(kRows);
    for (size_t i = 0; i < next.size(); ++i) next[i] = static_cast<TokenId>(i);
    for (const auto& script : scripts)
      for (size_t i = 0; i + 1 < script.size(); ++i) next[static_cast<size_t>(id(script[i]))] = id(script[i + 1]);
    folder_.write("tokenizer.json", byte_tokenizer_json(more_, kTokens, {kEnd}));
    folder_.write("config.json", config(context).dump());
    write_weights(next, wild);
  }

  TokenId id(const std::string& text) const {
    if (text == kEndOfText) return kEnd;
    return text.size() == 1 ? static_cast<TokenId>(static_cast<unsigned char>(text[0])) : ids_.at(text);
  }
  std::vector<TokenId> ids(const std::vector<std::string>& texts) const {
    std::vector<TokenId> result;
    for (const std::string& text : texts) result.push_back(id(text));
    return result;
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::unique_ptr<Model> load(const std::string& scheme = "fp8", int threads = 1) const {
    return load_test_model(path(), scheme, threads);
  }

 private:
  static Json config(int64_t context) {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_act", "silu"},
            {"hidden_size", kRows},
            {"intermediate_size", 64},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"head_dim", 32},
            {"vocab_size", kRows},
            {"max_position_embeddings", context},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"torch_dtype", "bfloat16"},
            {"bos_token_id", nullptr},
            {"eos_token_id", kEnd}};
  }

  void write_weights(const std::vector<TokenId>& next, const std::vector<int64_t>& wild) const {
    const std::string layer = "model.layers.0.";
    std::map<std::string, Shape> shapes = {{"model.embed_tokens.weight", {kRows, kRows}},
                                           {"lm_head.weight", {kRows, kRows}},
                                           {"model.norm.weight", {kRows}},
                                           {layer + "input_layernorm.weight", {kRows}},
                                           {layer + "post_attention_layernorm.weight", {kRows}},
                                           {layer + "self_attn.q_proj.weight", {64, kRows}},
                                           {layer + "self_attn.k_proj.weight", {32, kRows}},
                                           {layer + "self_attn.v_proj.weight", {32, kRows}},
                                           {layer + "self_attn.o_proj.weight", {kRows, 64}},
                                           {layer + "mlp.gate_proj.weight", {64, kRows}},
                                           {layer + "mlp.up_proj.weight", {64, kRows}},
                                           {layer + "mlp.down_proj.weight", {kRows, 64}}};
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, shape] : shapes) tensors.push_back({name, ElementType::kBf16, shape});
    auto writer = SafetensorsWriter::create(folder_.path() / "model.safetensors", tensors);
    if (!writer) throw std::runtime_error(writer.error().message());
    constexpr uint16_t kOne = 0x3F80, kHuge = 0x4234;  // BF16: 1, 45 (times 22.6 is about 1000)
    for (const auto& [name, shape] : shapes) {
      size_t count = 1;
      for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
      std::vector<uint16_t> values(count, name.find("norm") != std::string::npos ? kOne : uint16_t{0});
      for (size_t i = 0; i < static_cast<size_t>(kRows); ++i) {
        if (name == "model.embed_tokens.weight") values[i * kRows + i] = kOne;
        if (name == "lm_head.weight") values[static_cast<size_t>(next[i]) * kRows + i] = kOne;
      }
      if (name == "lm_head.weight")
        for (const int64_t row : wild) std::fill_n(values.begin() + row * kRows, kRows, kHuge);
      if (auto written = writer->write(name, 0, std::as_bytes(std::span(values))); !written)
        throw std::runtime_error(written.error().message());
    }
    if (auto done = writer->commit(); !done) throw std::runtime_error(done.error().message());
  }

  TestFolder folder_;
  std::map<std::string, TokenId> ids_;
  std::vector<std::string> more_;
};

}  // namespace octavo
