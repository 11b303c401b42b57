// Model folders made on the spot, for tests of the quantizer.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/safetensors_writer.h"
#include "support/test_folder.h"

namespace octavo {

// Sizes that are no multiples of 128; q, k and v of unequal size.
inline constexpr std::string_view kOddModel = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 320, "intermediate_size": 192,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 96,
  "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "an_unknown_key": {"kept": [1, 2.5]}
})";

// Two layers of experts and a dense one between them; more experts than some samples have tokens for.
inline constexpr std::string_view kExpertModel = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 320, "intermediate_size": 192,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 96,
  "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "num_experts": 24,
  "num_experts_per_tok": 3, "moe_intermediate_size": 96, "norm_topk_prob": true, "mlp_only_layers": [1]
})";

using Change = std::function<void(const std::string& name, std::vector<float>& values, const Shape& shape)>;

// Writes config.json and model.safetensors with weights N(0, 0.05) rounded to `element`; `change` may alter the values.
inline void write_model(const std::filesystem::path& folder, std::string_view config_text,
                        ElementType element = ElementType::kBf16, const Change& change = {}) {
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_text_file(folder / "config.json", config_text).has_value());
  const auto config = parse_model_config(config_text, "config.json");
  ASSERT_TRUE(config.has_value()) << config.error().message();
  std::vector<TensorToWrite> layout;
  const auto tensors = model_tensors(*config);
  for (const auto& [name, shape] : tensors) layout.push_back({name, element, shape});
  auto writer = SafetensorsWriter::create(folder / "model.safetensors", layout);
  ASSERT_TRUE(writer.has_value());
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  for (const auto& [name, shape] : tensors) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = shape.size() == 1 ? 1.0f : normal(random);
    if (change) change(name, values, shape);
    std::vector<std::byte> bytes(static_cast<size_t>(count * element_bits(element) / 8));
    for (size_t i = 0; i < values.size(); ++i) store_element(element, bytes.data(), i, values[i]);
    ASSERT_TRUE(writer->write(name, 0, bytes).has_value());
  }
  ASSERT_TRUE(writer->commit().has_value());
}

inline Checkpoint open_model(const std::filesystem::path& folder) {
  auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint) ADD_FAILURE() << checkpoint.error().message();
  return std::move(checkpoint).value();
}

inline Json read_config(const std::filesystem::path& folder) {
  return parse_json(read_text_file(folder / "config.json").value(), "config.json").value();
}

inline std::vector<float> plain_values(const TensorEntry& entry) {
  std::vector<float> values;
  for (int64_t i = 0; i < entry.plain->size(); ++i) values.push_back(entry.plain->at(i));
  return values;
}

}  // namespace octavo
