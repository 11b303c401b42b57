#include "kernels/scratch.h"

namespace octavo {

void* Scratch::get(int slot, size_t bytes) {
  while (slots_.size() <= static_cast<size_t>(slot)) slots_.emplace_back();
  AlignedBytes& memory = slots_[static_cast<size_t>(slot)];
  if (memory.size() < bytes) memory = AlignedBytes(bytes + bytes / 2);
  return memory.data();
}

size_t Scratch::total_bytes() const {
  size_t total = 0;
  for (const AlignedBytes& memory : slots_) total += memory.size();
  return total;
}

}  // namespace octavo
