// A lock that a run holds on the place where it writes, gone with the process whatever ends it.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "base/result.h"

namespace octavo {

class FileLock {
 public:
  // Makes the file where it is missing. Nothing: somebody else holds it. Error: the file cannot be made or locked.
  static Result<std::optional<FileLock>> take(const std::filesystem::path& path);
  // Whether somebody holds it; makes nothing.
  static Result<bool> held(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();

  // Removes the file and lets go.
  void remove();

 private:
  FileLock() = default;
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace octavo
