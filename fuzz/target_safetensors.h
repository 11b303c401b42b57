// What the safetensors fuzzer does with an input: a file's bytes, and the text of a shard index.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/safetensors.h"

namespace octavo {

inline void fuzz_safetensors(std::span<const std::byte> input) {
  (void)parse_safetensors_index({reinterpret_cast<const char*>(input.data()), input.size()}, "index");
  const auto header = parse_safetensors(input, "file");
  if (!header) return;
  std::vector<float> values;
  for (const auto& tensor : header->tensors) {
    if (!tensor.element) continue;
    const TensorView view{*tensor.element, tensor.shape, input.subspan(tensor.begin, tensor.end - tensor.begin)};
    const int64_t rows = view.data.empty() ? 0 : view.rows();
    values.resize(static_cast<size_t>(view.data.empty() ? 0 : view.size()));
    read_plain_rows(view, 0, rows, values);
  }
}

}  // namespace octavo
