// A TensorReader over tensors made in memory, and a small model for tests of quantized dialects.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dialect.h"

namespace octavo {

class MemoryTensors : public TensorReader {
 public:
  // `fill(i)` gives element i before it is stored in the element type.
  template <class Fill>
  void add(const std::string& name, ElementType element, Shape shape, Fill fill) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<std::byte> bytes(static_cast<size_t>(count * element_bits(element) / 8));
    for (int64_t i = 0; i < count; ++i) {
      if (element == ElementType::kE8m0)
        bytes[static_cast<size_t>(i)] = static_cast<std::byte>(fill(i));
      else
        store_element(element, bytes.data(), static_cast<size_t>(i), static_cast<float>(fill(i)));
    }
    add_bytes(name, element, std::move(shape), std::move(bytes));
  }
  void add_bytes(const std::string& name, ElementType element, Shape shape, std::vector<std::byte> bytes) {
    remove(name);
    auto& kept = storage_[name] = std::move(bytes);
    TensorEntry entry{.name = name, .shape = shape, .stored_type = std::string(element_info(element).safetensors)};
    entry.stored_bytes = static_cast<int64_t>(kept.size());
    entry.file = "model.safetensors";
    entry.plain = TensorView{element, std::move(shape), kept};
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                     [](const TensorEntry& e, const std::string& n) { return e.name < n; });
    entries_.insert(at, std::move(entry));
  }
  void remove(const std::string& name) {
    std::erase_if(entries_, [&](const TensorEntry& entry) { return entry.name == name; });
    storage_.erase(name);
  }
  std::byte* bytes(const std::string& name) { return storage_.at(name).data(); }

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override {
    for (const TensorEntry& entry : entries_)
      if (entry.name == name) return &entry;
    return nullptr;
  }
  Result<void> read_f32(const TensorEntry& entry, int64_t begin, int64_t end, std::span<float> out) const override {
    const int64_t cols = entry.plain->cols();
    for (int64_t i = 0; i < (end - begin) * cols; ++i) out[static_cast<size_t>(i)] = entry.plain->at(begin * cols + i);
    return {};
  }
  void forget(const TensorEntry&, int64_t, int64_t) const override {}

 private:
  std::map<std::string, std::vector<std::byte>> storage_;
  std::vector<TensorEntry> entries_;
};

// Two layers whose sizes are no multiples of 128: hidden 320, q 256, k and v 64 each, intermediate 192.
inline ModelConfig small_config() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 96;
  config.hidden_size = 320;
  config.intermediate_size = 192;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.sliding_window = {0, 0};
  return config;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Weights of every module in `element`, small integers; the head is BF16. Scales are left to the test.
inline MemoryTensors small_tensors(const ModelConfig& config, ElementType element) {
  MemoryTensors tensors;
  for (const LinearModule& module : config.linear_modules()) {
    const ElementType type = module.role == Role::kHead ? ElementType::kBf16 : element;
    tensors.add(module.name + ".weight", type, {module.rows, module.cols}, [](int64_t i) { return i * 7 % 15 - 7; });
  }
  tensors.add("model.embed_tokens.weight", ElementType::kBf16, {config.vocab_size, config.hidden_size},
              [](int64_t) { return 1; });
  tensors.add("model.norm.weight", ElementType::kBf16, {config.hidden_size}, [](int64_t) { return 1; });
  return tensors;
}

// scale(i, j) for every module but the head, under NAME, one for each 128x128 block.
template <class Scale>
void add_block_scales(MemoryTensors& tensors, const ModelConfig& config, const std::string& name, ElementType element,
                      Scale scale) {
  for (const LinearModule& module : config.linear_modules()) {
    if (module.role == Role::kHead) continue;
    const int64_t rows = ceil_div(module.rows, 128), cols = ceil_div(module.cols, 128);
    tensors.add(module.name + "." + name, element, {rows, cols}, [&](int64_t i) { return scale(i / cols, i % cols); });
  }
}

inline Json parsed(std::string_view text) {
  auto json = parse_json(text, "config.json");
  EXPECT_TRUE(json.has_value()) << text;
  return json.value_or(Json());
}

inline LinearModule module_named(const ModelConfig& config, std::string_view name) {
  for (const LinearModule& module : config.linear_modules())
    if (module.name == name) return module;
  ADD_FAILURE() << "no module " << name;
  return {};
}

// read_quantization and read_stored_linear in one, for tests of one module.
struct OneLinear {
  Result<StoredQuantization> quantization;
  Result<StoredLinear> linear = fail({.what = "not read"});
  std::set<std::string> used;
  std::vector<std::string> notes;

  std::string error() const {
    if (!quantization) return quantization.error().message();
    return linear ? "" : linear.error().message();
  }
  bool noted(std::string_view text) const {
    const auto has = [&](const std::string& note) { return note.find(text) != std::string::npos; };
    return std::any_of(notes.begin(), notes.end(), has) ||
           (quantization && std::any_of(quantization->plan.notes.begin(), quantization->plan.notes.end(), has));
  }
};

inline OneLinear read_one(std::string_view config_json, const ModelConfig& config, const TensorReader& tensors,
                          std::string_view name) {
  OneLinear one{read_quantization(parsed(config_json), config, tensors)};
  if (one.quantization)
    one.linear =
        read_stored_linear(module_named(config, name), *one.quantization, config, tensors, one.used, one.notes);
  return one;
}

}  // namespace octavo
