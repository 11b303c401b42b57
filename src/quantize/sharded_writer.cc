#include "quantize/sharded_writer.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"

namespace octavo {

int64_t data_bytes(const TensorToWrite& tensor) {
  int64_t bits = element_bits(tensor.element);
  for (const int64_t dim : tensor.shape) bits *= dim;
  return bits / 8;
}

Result<ShardedWriter> ShardedWriter::create(const std::filesystem::path& folder,
                                            const std::vector<TensorToWrite>& tensors, int64_t shard_bytes) {
  std::vector<std::vector<TensorToWrite>> shards(1);
  int64_t filled = 0;
  ShardedWriter writer;
  writer.folder_ = folder;
  for (const TensorToWrite& tensor : tensors) {
    const int64_t bytes = data_bytes(tensor);
    if (!shards.back().empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    writer.total_bytes_ += bytes;
    writer.shard_of_[tensor.name] = shards.size() - 1;
    shards.back().push_back(tensor);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    writer.names_.push_back(shards.size() == 1 ? "model.safetensors"
                                               : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    OCTAVO_ASSIGN(SafetensorsWriter shard, SafetensorsWriter::create(folder / writer.names_[i], std::move(shards[i])));
    writer.shards_.push_back(std::move(shard));
  }
  return writer;
}

Result<void> ShardedWriter::write(std::string_view name, size_t offset, std::span<const std::byte> bytes) {
  const auto shard = shard_of_.find(name);
  OCTAVO_CHECK(shard != shard_of_.end(), "tensor {} was not announced", name);
  return shards_[shard->second].write(name, offset, bytes);
}

Result<void> ShardedWriter::commit() {
  for (SafetensorsWriter& shard : shards_) OCTAVO_TRY(shard.commit());
  if (shards_.size() == 1) return {};
  Json index;
  index["metadata"]["total_size"] = total_bytes_;
  Json& map = index["weight_map"] = Json::object();
  for (const auto& [tensor, shard] : shard_of_) map[tensor] = names_[shard];
  return write_text_file(folder_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace octavo
