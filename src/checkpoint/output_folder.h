// A model folder being written: it appears under its name when it is complete, or not at all.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace octavo {

// Whether a model made from `model` (a folder or a file) may be written to `out`: `out` is neither the model nor inside
// of it, and does not exist or is an empty folder.
Result<void> check_output(const std::filesystem::path& model, const std::filesystem::path& out);

// Gives a finished temporary folder its name and syncs.
Result<void> finish_folder(const std::filesystem::path& temporary, const std::filesystem::path& out);

// A temporary folder beside `out`; removed with all that is in it unless finish() was called.
class OutputFolder {
 public:
  static Result<OutputFolder> create(const std::filesystem::path& model, const std::filesystem::path& out);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

  const std::filesystem::path& path() const { return temporary_; }  // write files here
  Result<void> finish();

 private:
  OutputFolder() = default;
  std::filesystem::path temporary_, out_;
};

}  // namespace octavo
