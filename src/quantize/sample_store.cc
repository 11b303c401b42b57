#include "quantize/sample_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace octavo {
namespace {

// `error`: errno's, or 0 where the file is shorter than it was.
Error spill_error(const std::filesystem::path& folder, int error) {
  return {.what = "cannot spill activations to disk",
          .where = folder.string(),
          .found = error == 0 ? "the file is cut short" : std::strerror(error),
          .remedy = "free space there, or raise --memory-limit"};
}

}  // namespace

Result<SampleStore> SampleStore::create(int64_t samples, int64_t slab_bytes, int64_t limit,
                                        const std::filesystem::path& folder) {
  SampleStore store;
  store.slab_bytes_ = store.largest_slab_ = slab_bytes;
  if (samples * slab_bytes <= limit) {
    store.memory_ = AlignedBytes(static_cast<size_t>(samples * slab_bytes));
    return store;
  }
  store.folder_ = folder;
  store.memory_ = AlignedBytes(static_cast<size_t>(slab_bytes));
  std::string name = (folder / "activations-XXXXXX").string();
  store.fd_ = mkostemp(name.data(), O_CLOEXEC);
  if (store.fd_ < 0) return fail(spill_error(folder, errno));
  unlink(name.c_str());  // gone with the process, whatever ends it
  // Space is taken now: a disk that is too small shows here and not hours later.
  if (const int error = posix_fallocate(store.fd_, 0, samples * slab_bytes); error != 0)
    return fail(spill_error(folder, error));
  return store;
}

SampleStore::SampleStore(SampleStore&& other) noexcept
    : memory_(std::move(other.memory_)),
      slab_bytes_(other.slab_bytes_),
      largest_slab_(other.largest_slab_),
      fd_(std::exchange(other.fd_, -1)),
      folder_(std::move(other.folder_)) {}

SampleStore& SampleStore::operator=(SampleStore&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(slab_bytes_, other.slab_bytes_);
  std::swap(largest_slab_, other.largest_slab_);
  std::swap(fd_, other.fd_);
  std::swap(folder_, other.folder_);
  return *this;
}

SampleStore::~SampleStore() {
  if (fd_ >= 0) close(fd_);
}

void SampleStore::use_slabs(int64_t slab_bytes) {
  OCTAVO_CHECK(slab_bytes <= largest_slab_, "slabs of {} bytes, made for {}", slab_bytes, largest_slab_);
  slab_bytes_ = slab_bytes;
}

std::byte* SampleStore::overwrite(int64_t sample) {
  return spilled() ? memory_.data() : memory_.data() + sample * slab_bytes_;
}

Result<std::byte*> SampleStore::open(int64_t sample) {
  if (!spilled()) return memory_.data() + sample * slab_bytes_;
  for (int64_t done = 0; done < slab_bytes_;) {
    const ssize_t got = pread(fd_, memory_.data() + done, static_cast<size_t>(slab_bytes_ - done),
                              static_cast<off_t>(sample * slab_bytes_ + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(spill_error(folder_, got < 0 ? errno : 0));
    done += got;
  }
  return memory_.data();
}

Result<void> SampleStore::save(int64_t sample) {
  if (!spilled()) return {};
  for (int64_t done = 0; done < slab_bytes_;) {
    const ssize_t put = pwrite(fd_, memory_.data() + done, static_cast<size_t>(slab_bytes_ - done),
                               static_cast<off_t>(sample * slab_bytes_ + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return fail(spill_error(folder_, put < 0 ? errno : ENOSPC));
    done += put;
  }
  return {};
}

}  // namespace octavo
