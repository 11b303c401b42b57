// Writes the tensors of a model folder: model.safetensors, or shards and an index where they would pass a size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors_writer.h"

namespace octavo {

class ShardedWriter {
 public:
  // Tensors fill shards in the order given. A tensor larger than a shard gets one of its own.
  static Result<ShardedWriter> create(const std::filesystem::path& folder, const std::vector<TensorToWrite>& tensors,
                                      int64_t shard_bytes);

  // As SafetensorsWriter::write; may be called from several threads.
  Result<void> write(std::string_view name, size_t offset, std::span<const std::byte> bytes);
  // Commits every shard, then writes the index.
  Result<void> commit();

 private:
  ShardedWriter() = default;
  std::filesystem::path folder_;
  std::vector<SafetensorsWriter> shards_;
  std::vector<std::string> names_;                       // file of each shard
  std::map<std::string, size_t, std::less<>> shard_of_;  // tensor -> shard
  int64_t total_bytes_ = 0;
};

// Bytes of a tensor's data.
int64_t data_bytes(const TensorToWrite& tensor);

}  // namespace octavo
