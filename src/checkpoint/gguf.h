// GGUF container: metadata and tensor directory, checked; block types are decoded on request.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

// A metadata value. Integers of any width are widened.
struct GgufValue {
  std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
               std::vector<double>>
      value;
};

class Gguf {
 public:
  static Result<Gguf> open(const std::filesystem::path& file);
  Gguf(Gguf&&) noexcept;
  Gguf& operator=(Gguf&&) noexcept;
  ~Gguf();

  const GgufValue* find(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key) const;  // also from unsigned and bool
  std::optional<double> number(std::string_view key) const;
  const std::vector<std::string>* texts(std::string_view key) const;
  const std::vector<int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;
  const std::filesystem::path& path() const;

  struct Tensor {
    std::string name;  // as in the file: "blk.0.attn_q.weight"
    Shape shape;       // torch order: [out, in]
    uint32_t type;     // ggml type id
    std::span<const std::byte> data;
  };
  const std::vector<Tensor>& tensors() const;
  // These bytes of a tensor were consumed: their pages need not stay resident.
  void forget(std::span<const std::byte> data) const;

 private:
  Gguf();
  struct State;
  std::unique_ptr<State> state_;
};

Result<ModelConfig> model_config_from_gguf(const Gguf& gguf);
// Tensors of a GGUF under hub names (rotate-half order for llama's q and k).
Result<std::unique_ptr<TensorReader>> open_gguf_tensors(Gguf gguf, const ModelConfig& config);

// The ggml block types Octavo decodes.
struct GgmlType {
  uint32_t id;
  std::string_view name;
  int block_elements, block_bytes;
  void (*decode)(const std::byte* block, float* out);  // one block
  // Blocks that are integers with an FP16 scale before them (which may be negative): which, and the codes of one block
  // as Octavo keeps them. Null: blocks of other kinds.
  ElementType code = ElementType::kF32;
  void (*codes)(const std::byte* block, std::byte* out) = nullptr;
};
const GgmlType* find_ggml_type(uint32_t id);  // nullptr: not supported
std::span<const GgmlType> ggml_k_types();     // those with scales inside their blocks, and of table indices

}  // namespace octavo
