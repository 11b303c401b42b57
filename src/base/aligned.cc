#include "base/aligned.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace octavo {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlack = 4096;

size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}
}  // namespace

AlignedBytes::AlignedBytes(size_t size) : size_(size) {
  if (size == 0) return;
  const bool large = size >= kHugePage / 2;
  mapping_size_ = large ? round_up(size + kSlack, kHugePage) + kHugePage : round_up(size + kSlack, 4096);
  mapping_ = mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  OCTAVO_CHECK(mapping_ != MAP_FAILED, "cannot map {} bytes: {}", mapping_size_, std::strerror(errno));
  data_ = static_cast<std::byte*>(mapping_);
  if (large) {
    data_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(mapping_), kHugePage));
    madvise(data_, round_up(size + kSlack, kHugePage), MADV_HUGEPAGE);
  }
}

AlignedBytes::~AlignedBytes() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_size_);
}

}  // namespace octavo
