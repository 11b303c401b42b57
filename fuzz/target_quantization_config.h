// quantization_config of any kind, against a tiny model stored wide, as FP8, as INT8 and packed: it is refused with
// words, or every linear layer and KV scale can be read. Shared by the fuzzer and the test that replays its corpus.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/dialect.h"

namespace octavo::fuzz {

// Tensors of a one-layer model; scales in several shapes and spellings, so that many configs find theirs.
class TinyTensors final : public TensorReader {
 public:
  TinyTensors(const ModelConfig& config, ElementType element) {
    for (const LinearModule& module : config.linear_modules()) {
      const bool head = module.role == Role::kHead;
      if (element == ElementType::kInt4 && !head) {
        add_packed(module);
        continue;
      }
      add(module.name + ".weight", head ? ElementType::kBf16 : element, {module.rows, module.cols});
      if (head || element == ElementType::kBf16) continue;
      const bool narrow = module.role == Role::kK || module.role == Role::kV;
      add(module.name + ".weight_scale", ElementType::kF32, narrow ? Shape{module.rows, 1} : Shape{1});
      if (module.role != Role::kO) add(module.name + ".input_scale", ElementType::kBf16, {1});
    }
    add("model.embed_tokens.weight", ElementType::kBf16, {config.vocab_size, config.hidden_size});
    add("model.layers.0.self_attn.k_scale", ElementType::kF32, {1});
    std::sort(entries_.begin(), entries_.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  }
  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override {
    for (const TensorEntry& entry : entries_)
      if (entry.name == name) return &entry;
    return nullptr;
  }
  Result<void> read_f32(const TensorEntry&, int64_t, int64_t, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.5f);
    return {};
  }
  void forget(const TensorEntry&, int64_t, int64_t) const override {}

  TinyTensors(const TinyTensors&) = delete;

 private:
  // Groups of two inputs in the layouts of GPTQ and AWQ; of 16 in bytes, as compressed-tensors has them.
  void add_packed(const LinearModule& m) {
    const auto words = [](int64_t n) { return (n + 7) / 8; };
    const bool awq = m.role == Role::kK || m.role == Role::kUp;
    add(m.name + ".qweight", ElementType::kInt32, awq ? Shape{m.cols, words(m.rows)} : Shape{words(m.cols), m.rows});
    add(m.name + ".qzeros", ElementType::kInt32, {(m.cols + 1) / 2, words(m.rows)});
    add(m.name + ".scales", ElementType::kF16, {(m.cols + 1) / 2, m.rows});
    if (m.role == Role::kQ) add(m.name + ".g_idx", ElementType::kInt32, {m.cols});
    const bool words_too = m.role == Role::kV;
    add(m.name + ".weight_packed", words_too ? ElementType::kInt32 : ElementType::kUint8,
        {m.rows, words_too ? words(m.cols) : (m.cols + 1) / 2});
    add(m.name + ".weight_scale", m.role == Role::kO ? ElementType::kUint8 : ElementType::kE4m3,
        {m.rows, (m.cols + 15) / 16});
    add(m.name + ".weight_global_scale", ElementType::kF32, {1});
  }
  void add(const std::string& name, ElementType element, Shape shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    auto& bytes = storage_[name];
    bytes.assign(static_cast<size_t>(count * element_bits(element) / 8), std::byte{0x3C});
    TensorEntry entry{.name = name, .shape = shape, .stored_type = std::string(element_info(element).safetensors)};
    entry.plain = TensorView{element, std::move(shape), bytes};
    entries_.push_back(std::move(entry));
  }
  std::map<std::string, std::vector<std::byte>> storage_;
  std::vector<TensorEntry> entries_;
};

inline ModelConfig tiny_config() {
  ModelConfig config;
  config.vocab_size = 8;
  config.hidden_size = 6;
  config.intermediate_size = 10;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.sliding_window = {0};
  return config;
}

inline void read_quantization_config(const uint8_t* data, size_t size) {
  const auto json = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
  if (!json) return;
  static const ModelConfig config = tiny_config();
  static const TinyTensors kinds[] = {{config, ElementType::kBf16},
                                      {config, ElementType::kE4m3},
                                      {config, ElementType::kInt8},
                                      {config, ElementType::kInt4}};
  for (const TinyTensors& tensors : kinds) {
    const auto quantization = read_quantization(*json, config, tensors);
    if (!quantization) {
      if (quantization.error().message().empty()) std::abort();
      continue;
    }
    std::set<std::string> used;
    std::vector<std::string> notes;
    for (const LinearModule& module : config.linear_modules()) {
      const auto linear = read_stored_linear(module, *quantization, config, tensors, used, notes);
      if (linear && dequantize(linear->view()).size() != static_cast<size_t>(module.rows * module.cols)) std::abort();
    }
    (void)read_kv_scales(0, *quantization, config, tensors, used, notes);
  }
}

}  // namespace octavo::fuzz
