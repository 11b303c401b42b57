#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace octavo {
namespace {

Error lock_error(const std::filesystem::path& path) {
  return {.what = "cannot lock file",
          .where = path.string(),
          .found = std::strerror(errno),
          .remedy = "check who may write there, and that the file system has locks"};
}

enum class Taken { kYes, kNo, kFailed };

Taken lock(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? Taken::kNo : Taken::kFailed;
  }
  return Taken::kYes;
}

// Whoever held the lock may have removed the file before we got it: then the lock is one on nothing.
bool is_at(int fd, const std::filesystem::path& path) {
  struct stat own {
  }, named{};
  return fstat(fd, &own) == 0 && stat(path.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
         own.st_dev == named.st_dev;
}

}  // namespace

Result<std::optional<FileLock>> FileLock::take(const std::filesystem::path& path) {
  while (true) {
    FileLock taken;
    taken.path_ = path;
    taken.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (taken.fd_ < 0) return fail(lock_error(path));
    const Taken result = lock(taken.fd_);
    if (result == Taken::kFailed) return fail(lock_error(path));
    if (result == Taken::kNo) return std::nullopt;
    if (is_at(taken.fd_, path)) return taken;
  }
}

Result<bool> FileLock::held(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return false;
  if (fd < 0) return fail(lock_error(path));
  const Taken result = lock(fd);
  Error error = lock_error(path);
  close(fd);
  if (result == Taken::kFailed) return fail(std::move(error));
  return result == Taken::kNo;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

void FileLock::remove() {
  if (fd_ < 0) return;
  unlink(path_.c_str());
  close(std::exchange(fd_, -1));
}

}  // namespace octavo
