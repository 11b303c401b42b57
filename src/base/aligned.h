// Memory for tensors: 64-byte aligned, zeroed, on huge pages where it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace octavo {

// A block of `size` zeroed bytes (plus 4 KB of readable slack behind it, so that kernels may prefetch and load past
// the end). From 1 MB up it is aligned to 2 MB and asks for transparent huge pages.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t size);
  // The same, beside others on shared huge pages: for blocks that live as long as the model. A small block alone would
  // either waste most of a huge page or cost a TLB miss for every 4 KB that are read; the slack behind it belongs to
  // its neighbour. The memory goes back when the last block of its neighbourhood does.
  static AlignedBytes beside_others(size_t size);
  AlignedBytes(AlignedBytes&& other) noexcept { swap(other); }
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    swap(other);
    return *this;
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  void swap(AlignedBytes& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<void> mapping_;
};

// A fixed-size array of trivial T in aligned, zeroed memory.
template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t count) : bytes_(count * sizeof(T)), count_(count) {}

  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + count_; }
  // At least `count` values; contents undefined.
  T* grow(int64_t count) {
    if (count_ < static_cast<size_t>(count)) *this = AlignedArray(static_cast<size_t>(count));
    return data();
  }
  std::span<T> span() { return {data(), count_}; }
  std::span<const T> span() const { return {data(), count_}; }

 private:
  AlignedBytes bytes_;
  size_t count_ = 0;
};

}  // namespace octavo
