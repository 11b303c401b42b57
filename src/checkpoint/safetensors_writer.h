// Streaming safetensors writer: the header is known first, tensors follow in any order, the file appears when complete.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/tensor.h"

namespace octavo {

struct TensorToWrite {
  std::string name;
  ElementType element;
  Shape shape;
};

class SafetensorsWriter {
 public:
  // Lays the tensors out (by element size descending, then name), writes the header through a temporary file.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                                          const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  // Bytes [offset, offset + size) of a tensor's data; pieces may come in any order, each byte once.
  Result<void> write(std::string_view name, size_t offset, std::span<const std::byte> bytes);
  // Error if a byte of any tensor was not written; then syncs and renames.
  Result<void> commit();

 private:
  SafetensorsWriter();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo
