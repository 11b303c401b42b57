#include "formats/quantize_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numerics/bits.h"

namespace octavo {
namespace {

constexpr int64_t kStep = 32;  // values per step

// Eight values of each source type, widened to FP32.
struct F32Source {
  using Word = uint32_t;
  static constexpr Word kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
  static __m256 load(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static float widen(Word bits) { return bits_float(bits); }
};
struct Bf16Source {
  using Word = uint16_t;
  static constexpr Word kMagnitude = 0x7FFF, kInfinity = 0x7F80;
  static __m256 load(const std::byte* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static float widen(Word bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }
};
struct F16Source {
  using Word = uint16_t;
  static constexpr Word kMagnitude = 0x7FFF, kInfinity = 0x7C00;
  static __m256 load(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static float widen(Word bits) { return _cvtsh_ss(bits); }
};

// Eight scaled values -> codes in the low bytes, and the values that the codes stand for.
struct Rounded {
  __m256i codes;
  __m256 values;
};

// Adding 2^(e + 23 - mantissa bits) makes the FP32 adder round a value of exponent e to the format's quantum, ties to
// even, subnormals included. Inputs are finite.
template <int kMantissaBits, int kMinExponent>
struct MinifloatEncoder {
  static Rounded round(__m256 x, __m256 largest) {
    constexpr int kShift = 23 - kMantissaBits, kLowest = (127 + kMinExponent) << 23, kRaise = kShift << 23;
    const __m256 sign_mask = _mm256_set1_ps(-0.0f);
    const __m256 sign = _mm256_and_ps(x, sign_mask);
    const __m256 magnitude = _mm256_min_ps(_mm256_andnot_ps(sign_mask, x), largest);
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(magnitude), _mm256_set1_epi32(0x7F800000));
    const __m256i magic =
        _mm256_add_epi32(_mm256_max_epi32(exponent, _mm256_set1_epi32(kLowest)), _mm256_set1_epi32(kRaise));
    const __m256 shifted = _mm256_add_ps(magnitude, _mm256_castsi256_ps(magic));
    const __m256i quanta = _mm256_sub_epi32(_mm256_castps_si256(shifted), magic);
    const __m256i base =
        _mm256_sub_epi32(_mm256_srli_epi32(magic, kShift), _mm256_set1_epi32((kLowest + kRaise) >> kShift));
    const __m256i sign_code = _mm256_srli_epi32(_mm256_castps_si256(sign), 24);
    return {_mm256_or_si256(_mm256_add_epi32(quanta, base), sign_code),
            _mm256_or_ps(_mm256_sub_ps(shifted, _mm256_castsi256_ps(magic)), sign)};
  }
};
using E4m3Encoder = MinifloatEncoder<3, -6>;
using E5m2Encoder = MinifloatEncoder<2, -14>;

struct Int8Encoder {
  static Rounded round(__m256 x, __m256 largest) {
    const __m256 lowest = _mm256_sub_ps(_mm256_setzero_ps(), largest);
    const __m256i value = _mm256_cvtps_epi32(_mm256_max_ps(lowest, _mm256_min_ps(x, largest)));
    return {_mm256_and_si256(value, _mm256_set1_epi32(0xFF)), _mm256_cvtepi32_ps(value)};
  }
};

float sum_lanes(__m256 v) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// 4 x 8 codes -> 32 bytes in order.
__m256i pack(const __m256i (&codes)[4]) {
  const __m256i low = _mm256_packus_epi32(codes[0], codes[1]), high = _mm256_packus_epi32(codes[2], codes[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Squares in units of the scale, so that they neither overflow nor vanish; lanes are emptied before they lose digits.
struct ErrorLanes {
  __m256 difference = _mm256_setzero_ps(), value = _mm256_setzero_ps();
};

template <class Source, class Encoder>
[[gnu::always_inline]] inline __m256i encode_step(const std::byte* source, __m256 scale, __m256 largest,
                                                  ErrorLanes& error) {
  __m256i codes[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 x =
        _mm256_div_ps(Source::load(source + i * 8 * static_cast<int>(sizeof(typename Source::Word))), scale);
    const Rounded rounded = Encoder::round(x, largest);
    codes[i] = rounded.codes;
    const __m256 difference = _mm256_sub_ps(x, rounded.values);
    error.difference = _mm256_fmadd_ps(difference, difference, error.difference);
    error.value = _mm256_fmadd_ps(x, x, error.value);
  }
  return pack(codes);
}

// `count` values that share a scale.
template <class Source, class Encoder>
RoundingError encode_span(const std::byte* source, int64_t count, float scale, float max, std::byte* codes) {
  constexpr int64_t kWord = sizeof(typename Source::Word), kFlush = 64 * kStep;
  const __m256 divisor = _mm256_set1_ps(scale), largest = _mm256_set1_ps(max);
  RoundingError total;
  for (int64_t begin = 0; begin < count; begin += kFlush) {
    const int64_t end = std::min(count, begin + kFlush);
    ErrorLanes error;
    int64_t i = begin;
    for (; i + kStep <= end; i += kStep)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                          encode_step<Source, Encoder>(source + i * kWord, divisor, largest, error));
    if (i < end) {
      std::byte values[kStep * kWord] = {}, bytes[kStep];
      std::memcpy(values, source + i * kWord, static_cast<size_t>((end - i) * kWord));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes),
                          encode_step<Source, Encoder>(values, divisor, largest, error));
      std::memcpy(codes + i, bytes, static_cast<size_t>(end - i));
    }
    total.difference += static_cast<double>(sum_lanes(error.difference));
    total.value += static_cast<double>(sum_lanes(error.value));
  }
  const double unit = static_cast<double>(scale) * static_cast<double>(scale);
  return {total.difference * unit, total.value * unit};
}

// Elements without a vector encoder (two in a byte, or wide): the definition itself.
template <class Source>
RoundingError encode_span_slow(const std::byte* source, int64_t count, float scale, ElementType element,
                               std::byte* row_codes, int64_t first) {
  RoundingError error;
  for (int64_t i = 0; i < count; ++i) {
    typename Source::Word bits;
    std::memcpy(&bits, source + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    const float value = Source::widen(bits);
    store_element(element, row_codes, static_cast<size_t>(first + i), value / scale);
    const double stored = static_cast<double>(load_element(element, row_codes, static_cast<size_t>(first + i)));
    const double difference = static_cast<double>(value) - stored * static_cast<double>(scale);
    error += {difference * difference, static_cast<double>(value) * static_cast<double>(value)};
  }
  return error;
}

template <class Source>
RoundingError encode_group(const std::byte* source, int64_t count, float scale, ElementType element,
                           std::byte* row_codes, int64_t first) {
  const float max = element_info(element).max;
  switch (element) {
    case ElementType::kE4m3:
      return encode_span<Source, E4m3Encoder>(source, count, scale, max, row_codes + first);
    case ElementType::kE5m2:
      return encode_span<Source, E5m2Encoder>(source, count, scale, max, row_codes + first);
    case ElementType::kInt8:
      return encode_span<Source, Int8Encoder>(source, count, scale, max, row_codes + first);
    default:
      return encode_span_slow<Source>(source, count, scale, element, row_codes, first);
  }
}

// The largest magnitude as bits: above every finite number's where a value is not finite.
template <class Source>
typename Source::Word largest_bits(const std::byte* source, int64_t count) {
  using Word = typename Source::Word;
  constexpr int64_t kLanes = 32 / sizeof(Word);
  const __m256i mask = sizeof(Word) == 2 ? _mm256_set1_epi16(0x7FFF) : _mm256_set1_epi32(0x7FFFFFFF);
  __m256i most = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto* p = reinterpret_cast<const __m256i*>(source + i * static_cast<int64_t>(sizeof(Word)));
    const __m256i magnitude = _mm256_and_si256(_mm256_loadu_si256(p), mask);
    most = sizeof(Word) == 2 ? _mm256_max_epu16(most, magnitude) : _mm256_max_epu32(most, magnitude);
  }
  alignas(32) Word lanes[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
  Word largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) {
    Word word;
    std::memcpy(&word, source + i * static_cast<int64_t>(sizeof word), sizeof word);
    largest = std::max(largest, static_cast<Word>(word & Source::kMagnitude));
  }
  return largest;
}

// How a format cuts rows into groups.
struct Grid {
  int64_t row_step, col_step, grid_cols;

  Grid(const RowsView& rows, const TensorFormat& format)
      : row_step(format.granularity == Granularity::kBlock ? format.block_rows
                 : format.granularity == Granularity::kRow ? 1
                                                           : std::max<int64_t>(rows.rows, 1)),
        col_step(format.granularity == Granularity::kBlock ? format.block_cols : std::max<int64_t>(rows.cols, 1)),
        grid_cols(format.scale_cols(rows.cols)) {}
};

template <class Source>
void amax_of(const RowsView& rows, const TensorFormat& format, std::span<float> amax) {
  const Grid grid(rows, format);
  std::vector<typename Source::Word> most(amax.size(), 0);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::byte* row = rows.data + r * rows.cols * static_cast<int64_t>(sizeof(typename Source::Word));
    for (int64_t c = 0, g = r / grid.row_step * grid.grid_cols; c < rows.cols; c += grid.col_step, ++g) {
      auto& group = most[static_cast<size_t>(g)];
      group = std::max(group, largest_bits<Source>(row + c * static_cast<int64_t>(sizeof group),
                                                   std::min(grid.col_step, rows.cols - c)));
    }
  }
  for (size_t g = 0; g < amax.size(); ++g) amax[g] = most[g] >= Source::kInfinity ? INFINITY : Source::widen(most[g]);
}

template <class Source>
RoundingError encode_all(const RowsView& rows, const TensorFormat& format, std::span<const float> scales,
                         std::byte* codes) {
  const Grid grid(rows, format);
  const int64_t row_bytes = format.element_bytes(1, rows.cols);
  RoundingError error;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::byte* row = rows.data + r * rows.cols * static_cast<int64_t>(sizeof(typename Source::Word));
    for (int64_t c = 0, g = r / grid.row_step * grid.grid_cols; c < rows.cols; c += grid.col_step, ++g) {
      const float scale = scales[static_cast<size_t>(g)];
      if (is_nan(scale)) continue;  // codes stay 0
      error +=
          encode_group<Source>(row + c * static_cast<int64_t>(sizeof(typename Source::Word)),
                               std::min(grid.col_step, rows.cols - c), scale, format.element, codes + r * row_bytes, c);
    }
  }
  return error;
}

// body<Source>() for the type of the rows.
template <class Body>
auto with_source(const RowsView& rows, Body body) {
  if (rows.element == ElementType::kBf16) return body.template operator()<Bf16Source>();
  if (rows.element == ElementType::kF16) return body.template operator()<F16Source>();
  OCTAVO_CHECK(rows.element == ElementType::kF32, "cannot quantize {}", element_name(rows.element));
  return body.template operator()<F32Source>();
}

void check_grid(const RowsView& rows, const TensorFormat& format, size_t scales) {
  OCTAVO_CHECK(format.scaled(), "{} has no scales", format.describe());
  const int64_t expected = format.scale_rows(rows.rows) * format.scale_cols(rows.cols);
  OCTAVO_CHECK(static_cast<int64_t>(scales) == expected, "{} scales, {} expected", scales, expected);
}

}  // namespace

double RoundingError::relative_rms() const {
  return value > 0 ? std::sqrt(difference / value) : 0.0;
}

void group_amax(const RowsView& rows, const TensorFormat& format, std::span<float> amax) {
  check_grid(rows, format, amax.size());
  with_source(rows, [&]<class Source>() { amax_of<Source>(rows, format, amax); });
}

RoundingError encode_rows(const RowsView& rows, const TensorFormat& format, std::span<const float> scales,
                          std::span<std::byte> codes) {
  check_grid(rows, format, scales.size());
  const int64_t bytes = format.element_bytes(rows.rows, rows.cols);
  OCTAVO_CHECK(static_cast<int64_t>(codes.size()) == bytes, "{} bytes of codes, {} expected", codes.size(), bytes);
  std::memset(codes.data(), 0, codes.size());
  return with_source(rows, [&]<class Source>() { return encode_all<Source>(rows, format, scales, codes.data()); });
}

RoundingError quantize_rows(const RowsView& rows, const TensorFormat& format, std::span<float> scales,
                            std::span<std::byte> codes) {
  group_amax(rows, format, scales);
  for (float& scale : scales) scale = scale_from_amax(scale, format);
  return encode_rows(rows, format, scales, codes);
}

std::optional<Position> find_non_finite(const RowsView& rows) {
  return with_source(rows, [&]<class Source>() -> std::optional<Position> {
    using Word = typename Source::Word;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const std::byte* row = rows.data + r * rows.cols * static_cast<int64_t>(sizeof(Word));
      if (largest_bits<Source>(row, rows.cols) < Source::kInfinity) continue;
      for (int64_t c = 0; c < rows.cols; ++c)
        if (largest_bits<Source>(row + c * static_cast<int64_t>(sizeof(Word)), 1) >= Source::kInfinity)
          return Position{r, c};
    }
    return std::nullopt;
  });
}

}  // namespace octavo
