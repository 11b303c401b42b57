// safetensors containers, read strictly: one file, or shards named by model.safetensors.index.json. Files are mapped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

// The largest header, as in the reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
// Tensors of one file: more than the largest mixtures of experts have in all their shards, and few enough that
// a hostile header cannot fill the memory.
inline constexpr size_t kMaxSafetensorsTensors = 300'000;

struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    std::string_view dtype;              // "BF16"; static text
    std::optional<ElementType> element;  // empty: a type of the format that Octavo does not compute with
    Shape shape;
    uint64_t begin = 0, end = 0;  // bytes in the file
  };
  std::vector<Tensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
};

// Checks a whole file's bytes: header length, JSON, types, shapes, that the ranges tile the data without holes or
// overlap, and the file's length. `where` names the file in errors.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view where);

// The weight_map of an index: tensor -> shard, sorted by tensor. Shards that leave the folder are refused.
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json, std::string_view where);

// Tensors of a .safetensors file, or of a folder: the shards of model.safetensors.index.json, else model.safetensors,
// else the only *.safetensors file in it. TensorEntry::file is relative to the folder.
Result<std::unique_ptr<TensorReader>> open_safetensors(const std::filesystem::path& path);

// Rows [begin, end) of plain elements as FP32.
void read_plain_rows(const TensorView& view, int64_t begin, int64_t end, std::span<float> out);

}  // namespace octavo
