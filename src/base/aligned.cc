#include "base/aligned.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlack = 4096;
// Address space of one neighbourhood; what nobody has touched of it takes no memory.
constexpr size_t kNeighbourhood = size_t{64} << 20;

size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

struct Mapping {
  std::shared_ptr<void> owner;
  std::byte* data;
};

// Zeroed memory of `size` bytes and the slack behind them.
Mapping map(size_t size) {
  const bool large = size >= kHugePage / 2;
  const size_t mapped = large ? round_up(size + kSlack, kHugePage) + kHugePage : round_up(size + kSlack, 4096);
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  OCTAVO_CHECK(start != MAP_FAILED, "cannot map {} bytes: {}", mapped, std::strerror(errno));
  auto* data = static_cast<std::byte*>(start);
  if (large) {
    const auto address = reinterpret_cast<uintptr_t>(start);
    data += round_up(address, kHugePage) - address;
    madvise(data, round_up(size + kSlack, kHugePage), MADV_HUGEPAGE);
  }
  return {{start, [mapped](void* at) { munmap(at, mapped); }}, data};
}

// The neighbourhood that is being filled. It does not keep the memory alive: its blocks do.
struct Neighbourhood {
  std::mutex mutex;
  std::weak_ptr<void> owner;
  std::byte* data = nullptr;
  size_t used = 0;
};

}  // namespace

AlignedBytes::AlignedBytes(size_t size) : size_(size) {
  if (size == 0) return;
  Mapping mapping = map(size);
  mapping_ = std::move(mapping.owner);
  data_ = mapping.data;
}

AlignedBytes AlignedBytes::beside_others(size_t size) {
  static Neighbourhood current;
  if (size == 0 || size > kNeighbourhood / 2) return AlignedBytes(size);
  const std::lock_guard lock(current.mutex);
  AlignedBytes out;
  out.mapping_ = current.owner.lock();
  if (out.mapping_ == nullptr || current.used + size > kNeighbourhood) {
    Mapping mapping = map(kNeighbourhood);
    out.mapping_ = std::move(mapping.owner);
    current.owner = out.mapping_;
    current.data = mapping.data;
    current.used = 0;
  }
  out.size_ = size;
  out.data_ = current.data + current.used;
  current.used += round_up(size, 64);
  return out;
}

}  // namespace octavo
