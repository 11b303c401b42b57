// Two small open-addressing tables for loading large vocabularies quickly. Hashes are seeded per process, so that a
// hostile file cannot be written to collide.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo {

uint64_t process_hash_seed();

inline uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const auto product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view bytes, uint64_t seed) {
  constexpr uint64_t kOdd1 = 0x9E3779B97F4A7C15, kOdd2 = 0xD1B54A32D192ED03;
  uint64_t hash = mix(seed ^ bytes.size(), kOdd1);
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = mix(hash ^ word, kOdd1 ^ seed);
  }
  uint64_t tail = 0;
  if (bytes.size() > i) std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
  return mix(hash ^ tail, kOdd2 ^ seed);
}

// 64-bit key (any but ~0) -> V. Keys are not removed.
template <class V>
class FlatMap {
 public:
  explicit FlatMap(size_t expected = 0) : seed_(process_hash_seed()) { resize_for(expected); }

  void reserve(size_t expected) {
    if (expected * 2 > slots_.size()) resize_for(expected);
  }
  // The value of `key`, made (default) if it is new.
  V& operator[](uint64_t key) {
    if ((count_ + 1) * 2 > slots_.size()) resize_for(count_ * 2 + 8);
    Slot& slot = slots_[position(key)];
    if (slot.key == kFree) {
      slot.key = key;
      ++count_;
    }
    return slot.value;
  }
  const V* find(uint64_t key) const {
    const Slot& slot = slots_[position(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  size_t size() const { return count_; }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    V value{};
  };
  size_t position(uint64_t key) const {
    size_t i = mix(key ^ seed_, 0x9E3779B97F4A7C15) & (slots_.size() - 1);
    while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  void resize_for(size_t expected) {
    size_t capacity = 16;
    while (capacity < expected * 2) capacity *= 2;
    std::vector<Slot> old = std::move(slots_);
    slots_ = std::vector<Slot>(capacity);
    for (const Slot& slot : old)
      if (slot.key != kFree) slots_[position(slot.key)] = slot;
  }

  uint64_t seed_;
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace octavo
