#include "kernels/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "base/aligned.h"
#include "kernels/bursts.h"
#include "kernels/isa.h"

namespace octavo {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// XOR of a range; four streams and a prefetch 4 KB ahead, as the kernels have.
uint64_t read_range(const std::byte* data, size_t size) {
  __m256i sums[4] = {};
  for (size_t i = 0; i + 256 <= size; i += 256) {
    for (size_t line = 0; line < 256; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(data + i + 4096 + line), _MM_HINT_T0);
    for (size_t part = 0; part < 8; ++part)
      sums[part % 4] =
          _mm256_xor_si256(sums[part % 4], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + part * 32)));
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), all);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

double read_rate(ThreadPool& pool, const AlignedBytes& memory) {
  const size_t slice = memory.size() / static_cast<size_t>(pool.size()) / 4096 * 4096;
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::atomic<uint64_t> sink{0};
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread) { sink ^= read_range(memory.data() + static_cast<size_t>(thread) * slice, slice); });
    best = std::max(best, static_cast<double>(slice * static_cast<size_t>(pool.size())) / seconds_since(start) * 1e-9);
  }
  return best;
}

// 10^9 operations per second over all threads; a multiply-add is two.
double burst_gops(ThreadPool& pool, BurstKind kind) {
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::atomic<int64_t> done{0};
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int) { done += run_burst(kind, 400'000'000); });
    best = std::max(best, 2 * static_cast<double>(done.load()) / seconds_since(start) * 1e-9);
  }
  return best;
}

AlignedBytes touched_memory(size_t bytes) {
  AlignedBytes memory(bytes);
  for (size_t i = 0; i < bytes; i += 4096) memory.data()[i] = std::byte{1};  // pages of their own, not the zero page
  return memory;
}

Roofline measure(ThreadPool& pool, const AlignedBytes& memory) {
  Roofline roofline{.read_gb_s = read_rate(pool, memory)};
  roofline.fma_gflops = burst_gops(pool, isa_available(Isa::kAvx512) ? BurstKind::kFmaAvx512 : BurstKind::kFmaAvx2);
  if (isa_available(Isa::kAvx512Bf16)) roofline.bf16_dot_gflops = burst_gops(pool, BurstKind::kBf16Dot);
  if (isa_available(Isa::kAvx512)) roofline.int8_gops = burst_gops(pool, BurstKind::kInt8Dot);
  return roofline;
}

}  // namespace

Roofline measure_roofline(ThreadPool& pool) {
  static std::mutex mutex;
  static AlignedBytes memory;
  const std::lock_guard lock(mutex);
  if (memory.size() == 0) memory = touched_memory(size_t{512} << 20);
  return measure(pool, memory);
}

Roofline measure_roofline_once(ThreadPool& pool, size_t bytes) {
  return measure(pool, touched_memory(bytes));
}

}  // namespace octavo
