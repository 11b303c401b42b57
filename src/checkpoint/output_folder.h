// A model folder being written: it appears under its name when it is complete, or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/file_lock.h"
#include "base/result.h"

namespace octavo {

// Whether a model made from `model` (a folder or a file) may be written to `out`: `out` is neither the model nor inside
// of it, and does not exist or is an empty folder.
Result<void> check_output(const std::filesystem::path& model, const std::filesystem::path& out);

// Whether the disk that `out` is to lie on has this much room.
Result<void> check_space(const std::filesystem::path& out, int64_t bytes);

// Where a model is written before it has its name: OUT.writing/model, locked. A run that is killed leaves it, and the
// next one into the same `out` takes it away. Removed with all that is in it unless finish() was called. Error: another
// run is writing to `out`.
class OutputFolder {
 public:
  static Result<OutputFolder> create(const std::filesystem::path& model, const std::filesystem::path& out);
  // What create() would say of other runs, and the bytes that it would take away.
  static Result<void> check_free(const std::filesystem::path& out);
  static int64_t left_bytes(const std::filesystem::path& out);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

  const std::filesystem::path& path() const { return model_; }  // write files here
  // Gives it its name and syncs.
  Result<void> finish();

 private:
  OutputFolder() = default;
  void remove_rest();
  std::filesystem::path model_, out_;
  std::optional<FileLock> lock_;
};

}  // namespace octavo
