#include "kernels/cpu/common/linear_steps.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/common/transpose.h"

namespace octavo {
namespace {

constexpr int kMostRows = 16;
constexpr int64_t kSliceSteps = 256;  // interleaved at a time: 16 KB, half of an L1 cache

__m256i load_half(const std::byte* p) {
  return _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Eight E4M3 codes in the high bytes of words, as FP32: shifted right by one they are the FP16 of value / 256.
__m256 e4m3_floats(__m128i codes_high) {
  const __m128i halves = _mm_and_si128(_mm_srai_epi16(codes_high, 1), _mm_set1_epi16(static_cast<short>(0xBFFF)));
  const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
  // The NaN codes come out as 480, which no other code does; all bits set is a NaN.
  return _mm256_or_ps(value, _mm256_cmp_ps(magnitude, _mm256_set1_ps(480.0f), _CMP_EQ_OQ));
}

struct Floats {
  __m256 low, high;
};

Floats load_e4m3(const std::byte* codes) {
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(load_half(codes))), 8);
  return {e4m3_floats(_mm256_castsi256_si128(words)), e4m3_floats(_mm256_extracti128_si256(words, 1))};
}

Floats load_bf16(const std::byte* codes) {
  const __m256i words = load_vector(codes);
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(words)),
                high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}

// Values that are BF16 already, to BF16.
__m256i to_bf16(const Floats& x) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(x.low), 16),
                high = _mm256_srli_epi32(_mm256_castps_si256(x.high), 16);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
}

template <Floats (*kLoad)(const std::byte*)>
void widen_to_floats(const std::byte* codes, size_t code_bytes, int64_t cols, std::byte* out) {
  for (int64_t i = 0; i < cols; i += 16, codes += 16 * code_bytes, out += 64) {
    const Floats x = kLoad(codes);
    _mm256_storeu_ps(reinterpret_cast<float*>(out), x.low);
    _mm256_storeu_ps(reinterpret_cast<float*>(out) + 8, x.high);
  }
}

size_t whole(int64_t cols) {
  return static_cast<size_t>((cols + 15) / 16 * 16);
}

void to_floats(ElementType element, const std::byte* codes, int64_t cols, std::byte* out) {
  switch (element) {
    case ElementType::kF32:
      std::memcpy(out, codes, whole(cols) * 4);
      return;
    case ElementType::kBf16:
      return widen_to_floats<load_bf16>(codes, 2, cols, out);
    case ElementType::kE4m3:
      return widen_to_floats<load_e4m3>(codes, 1, cols, out);
    default:
      OCTAVO_CHECK(false, "{} activations", element_name(element));
  }
}

void to_bf16_pairs(ElementType element, const std::byte* codes, int64_t cols, std::byte* out) {
  if (element == ElementType::kBf16) {
    std::memcpy(out, codes, whole(cols) * 2);
    return;
  }
  OCTAVO_CHECK(element == ElementType::kE4m3, "{} activations", element_name(element));
  for (int64_t i = 0; i < cols; i += 16) store_vector(out + 2 * i, to_bf16(load_e4m3(codes + i)));
}

void to_biased_bytes(const std::byte* codes, int64_t cols, std::byte* out) {
  const __m128i bias = _mm_set1_epi8(static_cast<char>(0x80));
  for (int64_t i = 0; i < cols; i += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)), bias));
}

void to_int16(const std::byte* codes, int64_t cols, std::byte* out) {
  for (int64_t i = 0; i < cols; i += 16)
    store_vector(out + 2 * i, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(load_half(codes + i))));
}

// rows[0..count) at step i.. i + 7, as [step][count]; `count` <= 8 rows of out's `rows`.
void interleave_eight(const std::byte* const* from, int count, int64_t step, int rows, std::byte* out) {
  __m256i m[8];
  for (int r = 0; r < 8; ++r) m[r] = r < count ? load_vector(from[r] + step * 4) : _mm256_setzero_si256();
  transpose_dwords(m);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  for (int i = 0; i < 8; ++i) _mm256_maskstore_epi32(reinterpret_cast<int*>(out + (step + i) * rows * 4), mask, m[i]);
}

}  // namespace

StepShape step_shape(StepKind kind) {
  switch (kind) {
    case StepKind::kFloat:
      return {1, 4};
    case StepKind::kBf16:
      return {2, 4};
    case StepKind::kUint8:
      return {4, 4};
    case StepKind::kInt16:
      return {4, 8};
  }
  return {};
}

int64_t step_row_bytes(StepKind kind, int64_t cols) {
  const StepShape shape = step_shape(kind);
  return (cols + 15) / 16 * 16 / shape.cols * shape.bytes;
}

void widen_steps(StepKind kind, const Activation& x, int64_t row, int64_t col0, int64_t cols, std::byte* out) {
  const ElementType element = x.format.element;
  const std::byte* codes = x.row(row) + col0 * element_bits(element) / 8;
  switch (kind) {
    case StepKind::kFloat:
      return to_floats(element, codes, cols, out);
    case StepKind::kBf16:
      return to_bf16_pairs(element, codes, cols, out);
    case StepKind::kUint8:
      return to_biased_bytes(codes, cols, out);
    case StepKind::kInt16:
      return to_int16(codes, cols, out);
  }
}

size_t interleave_memory() {
  return kMostRows * (kSliceSteps * 4 + 64);
}

void interleave_steps(StepKind kind, const Activation& x, int64_t row, int rows, std::byte* memory, std::byte* out) {
  const StepShape shape = step_shape(kind);
  OCTAVO_CHECK(rows <= kMostRows && shape.bytes == 4, "{} rows of steps of {} bytes", rows, shape.bytes);
  const std::byte* from[kMostRows];
  for (int r = 0; r < rows; ++r) from[r] = memory + r * (kSliceSteps * 4 + 64);
  const int64_t steps = (x.cols + shape.cols - 1) / shape.cols;
  for (int64_t step = 0; step < steps; step += kSliceSteps) {
    const int64_t count = std::min(kSliceSteps, steps - step), col0 = step * shape.cols;
    for (int r = 0; r < rows; ++r)
      widen_steps(kind, x, row + r, col0, std::min(count * shape.cols, x.cols - col0),
                  memory + r * (kSliceSteps * 4 + 64));
    std::byte* to = out + step * rows * 4;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      for (int r = 0; r < rows; r += 8) interleave_eight(from + r, std::min(8, rows - r), i, rows, to + r * 4);
    for (; i < count; ++i)
      for (int r = 0; r < rows; ++r) std::memcpy(to + (i * rows + r) * 4, from[r] + i * 4, 4);
  }
}

}  // namespace octavo
