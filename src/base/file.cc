#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace octavo {
namespace {

Error system_error(std::string what, const std::filesystem::path& path) {
  const int code = errno;
  Error error{.what = std::move(what), .where = path.string(), .found = std::strerror(code)};
  if (code == ENOSPC || code == EDQUOT) error.remedy = "free space on that disk";
  if (code == ENOENT) error.remedy = "check the path";
  return error;
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return fail(system_error("cannot open file", path));
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return fail(system_error("cannot stat file", path));
  if (!S_ISREG(info.st_mode)) return fail({.what = "not a regular file", .where = path.string()});
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = static_cast<size_t>(info.st_size);
  if (mapped.size_ > 0) {
    void* data = mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (data == MAP_FAILED) {
      mapped.size_ = 0;
      return fail(system_error("cannot map file", path));
    }
    mapped.data_ = static_cast<const std::byte*>(data);
  }
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::forget(size_t offset, size_t size) const {
  constexpr size_t kPage = 4096;
  const size_t begin = (offset + kPage - 1) / kPage * kPage, end = (offset + size) / kPage * kPage;
  if (begin < end && end <= size_) madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

Result<AtomicFileWriter> AtomicFileWriter::create(const std::filesystem::path& path) {
  AtomicFileWriter writer;
  writer.path_ = path;
  writer.temporary_ = path;
  writer.temporary_ += fmt::format(".tmp.{}", getpid());
  writer.fd_ = ::open(writer.temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer.fd_ < 0) return fail(system_error("cannot create file", writer.temporary_));
  return writer;
}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Result<void> AtomicFileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(system_error("cannot write file", path_));
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<void> AtomicFileWriter::write_at(size_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(system_error("cannot write file", path_));
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<size_t>(count);
  }
  return {};
}

Result<void> AtomicFileWriter::commit() {
  if (fsync(fd_) != 0) return fail(system_error("cannot sync file", path_));
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    Error error = system_error("cannot finish file", path_);
    unlink(temporary_.c_str());
    return fail(std::move(error));
  }
  return {};
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit) {
  OCTAVO_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > limit)
    return fail({.what = "file is too large",
                 .where = path.string(),
                 .found = fmt::format("{} bytes", bytes.size()),
                 .expected = fmt::format("at most {} bytes", limit)});
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::string> read_flag_file(std::string_view flag, const std::filesystem::path& path, size_t limit) {
  auto text = read_text_file(path, limit);
  if (text) return text;
  Error error = std::move(text).error();
  error.where = fmt::format("{} {}", flag, error.where);
  return fail(std::move(error));
}

Result<void> write_text_file(const std::filesystem::path& path, std::string_view text) {
  OCTAVO_ASSIGN(AtomicFileWriter writer, AtomicFileWriter::create(path));
  OCTAVO_TRY(writer.write(std::as_bytes(std::span(text))));
  return writer.commit();
}

}  // namespace octavo
