// The embedding: rows of a plain table, widened to FP32.
#include <immintrin.h>

#include <cstring>

#include "base/check.h"
#include "kernels/producers.h"

namespace octavo {
namespace {

void widen_bf16(const std::byte* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, from + 2 * i, sizeof half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

void widen_f16(const std::byte* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  for (; i < n; ++i) to[i] = load_element(ElementType::kF16, from, static_cast<size_t>(i));
}

}  // namespace

void embed(const TensorView& table, std::span<const int32_t> ids, float* output, int64_t output_stride) {
  const int64_t cols = table.cols(), row_bytes = cols * element_bits(table.element) / 8;
  for (size_t i = 0; i < ids.size(); ++i) {
    OCTAVO_CHECK(ids[i] >= 0 && ids[i] < table.rows(), "token {} of {}", ids[i], table.rows());
    const std::byte* row = table.data.data() + ids[i] * row_bytes;
    float* out = output + static_cast<int64_t>(i) * output_stride;
    switch (table.element) {
      case ElementType::kF32:
        std::memcpy(out, row, static_cast<size_t>(row_bytes));
        break;
      case ElementType::kBf16:
        widen_bf16(row, cols, out);
        break;
      case ElementType::kF16:
        widen_f16(row, cols, out);
        break;
      default:
        OCTAVO_CHECK(false, "an embedding of {}", element_name(table.element));
    }
  }
}

}  // namespace octavo
