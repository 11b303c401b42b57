// Rows of activations of every calibration sample at one place of the model: in memory, or in a temporary file where
// they would pass a limit.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/aligned.h"
#include "base/result.h"

namespace octavo {

class SampleStore {
 public:
  // `samples` slabs of `slab_bytes` each. In memory where they fit in `limit` bytes; else in an unnamed file in
  // `folder`, of which one slab at a time is in memory. Error: a folder that cannot hold the file.
  static Result<SampleStore> create(int64_t samples, int64_t slab_bytes, int64_t limit,
                                    const std::filesystem::path& folder);
  // Goes on with smaller slabs, of at most the size it was made with; what it held is lost.
  void use_slabs(int64_t slab_bytes);
  SampleStore() = default;
  SampleStore(SampleStore&& other) noexcept;
  SampleStore& operator=(SampleStore&& other) noexcept;
  ~SampleStore();

  // The slab of a sample, valid until another one is opened; what is changed is kept by save().
  Result<std::byte*> open(int64_t sample);
  // A slab that will be overwritten: not read.
  std::byte* overwrite(int64_t sample);
  Result<void> save(int64_t sample);

  bool empty() const { return memory_.size() == 0; }
  bool spilled() const { return fd_ >= 0; }
  // Bytes of slabs in memory, where all of them are.
  int64_t bytes_held() const { return spilled() ? 0 : static_cast<int64_t>(memory_.size()); }

 private:
  AlignedBytes memory_;  // all slabs, or one
  int64_t slab_bytes_ = 0, largest_slab_ = 0;
  int fd_ = -1;
  std::filesystem::path folder_;
};

}  // namespace octavo
