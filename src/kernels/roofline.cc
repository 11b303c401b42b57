#include "kernels/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "base/aligned.h"
#include "base/check.h"
#include "kernels/bursts.h"
#include "kernels/isa.h"

namespace octavo {
namespace {

constexpr size_t kMostRead = size_t{512} << 20;

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

// 10^9 bytes per second; thread t of n reads the t-th part of every block (all of it where that is next to nothing).
double read_rate(ThreadPool& pool, std::span<const std::span<const std::byte>> memory) {
  const auto threads = static_cast<size_t>(pool.size());
  std::atomic<uint64_t> sink{0}, bytes{0};
  const auto start = std::chrono::steady_clock::now();
  pool.run([&](int thread) {
    uint64_t done = 0, all = 0;
    for (size_t i = 0; i < memory.size() && done < kMostRead / threads; ++i) {
      const size_t parts = memory[i].size() < (threads << 12) ? 1 : threads;
      const size_t slice = memory[i].size() / parts / 256 * 256;
      all ^= read_range(memory[i].data() + static_cast<size_t>(thread) % parts * slice, slice);
      done += slice;
    }
    sink ^= all;
    bytes += done;
  });
  OCTAVO_CHECK(bytes > 0, "no memory to read in {} blocks", memory.size());
  return static_cast<double>(bytes.load()) / seconds_since(start) * 1e-9;
}

// 10^9 operations per second over all threads; a multiply-add is two.
double burst_gops(ThreadPool& pool, BurstKind kind) {
  std::atomic<int64_t> done{0};
  const auto start = std::chrono::steady_clock::now();
  pool.run([&](int) { done += run_burst(kind, 400'000'000); });
  return 2 * static_cast<double>(done.load()) / seconds_since(start) * 1e-9;
}

}  // namespace

std::optional<Roofline> measure_roofline(ThreadPool& pool, std::span<const std::span<const std::byte>> memory,
                                         const std::function<bool()>& interrupted) {
  Roofline roofline;
  const auto best_burst = [&](double& best, BurstKind kind) { best = std::max(best, burst_gops(pool, kind)); };
  for (int repeat = 0; repeat < 3; ++repeat) {
    if (interrupted()) return std::nullopt;
    roofline.read_gb_s = std::max(roofline.read_gb_s, read_rate(pool, memory));
    if (interrupted()) return std::nullopt;
    best_burst(roofline.fma_gflops, isa_available(Isa::kAvx512) ? BurstKind::kFmaAvx512 : BurstKind::kFmaAvx2);
    if (interrupted()) return std::nullopt;
    if (isa_available(Isa::kAvx512Bf16)) best_burst(roofline.bf16_dot_gflops, BurstKind::kBf16Dot);
    if (interrupted()) return std::nullopt;
    if (isa_available(Isa::kAvx512)) best_burst(roofline.int8_gops, BurstKind::kInt8Dot);
  }
  return roofline;
}

Roofline measure_roofline(ThreadPool& pool) {
  static std::mutex mutex;
  static AlignedBytes memory;
  const std::lock_guard lock(mutex);
  if (memory.size() == 0) {
    memory = AlignedBytes(kMostRead);
    for (size_t i = 0; i < memory.size(); i += 4096) memory.data()[i] = std::byte{1};  // not the zero page
  }
  const std::span<const std::byte> block(memory.data(), memory.size());
  return *measure_roofline(pool, {&block, 1}, [] { return false; });
}

}  // namespace octavo
