// Files: mapped for reading, and written so that a reader sees the old content or the new, never half of it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace octavo {

// A whole file, read-only, mapped. Empty files map to an empty span.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the system that [offset, offset + size) will not be read again soon: keeps resident memory bounded when a
  // large file is streamed once.
  void forget(size_t offset, size_t size) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Writes PATH through a temporary file beside it; the name appears at commit(), complete and synced. Destroyed without
// commit() it leaves nothing behind. Every call reports a full disk and the like.
class AtomicFileWriter {
 public:
  static Result<AtomicFileWriter> create(const std::filesystem::path& path);
  ~AtomicFileWriter();
  AtomicFileWriter(AtomicFileWriter&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), fd_(std::exchange(other.fd_, -1)) {}
  AtomicFileWriter& operator=(AtomicFileWriter&&) = delete;

  Result<void> write(std::span<const std::byte> bytes);  // appends
  Result<void> write_at(size_t offset,
                        std::span<const std::byte> bytes);  // anywhere; does not move the append position
  Result<void> commit();

 private:
  AtomicFileWriter() = default;
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

// The whole file as text; refuses files larger than `limit` bytes.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);
// The same for a file that a flag names: so does the error.
Result<std::string> read_flag_file(std::string_view flag, const std::filesystem::path& path,
                                   size_t limit = size_t{1} << 30);
Result<void> write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace octavo
