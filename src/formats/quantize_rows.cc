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
using E2m1Encoder = MinifloatEncoder<1, 0>;  // the sign lands in bit 7: nibble() moves it

struct IntegerEncoder {
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

// 32 codes of four bits, one a byte, the sign in bit 3 or 7 -> 16 bytes, the even one in the low nibble.
__m128i nibbles(__m256i codes) {
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi8(8));
  const __m256i code = _mm256_and_si256(_mm256_or_si256(codes, sign), _mm256_set1_epi8(15));
  const __m256i pairs = _mm256_maddubs_epi16(code, _mm256_set1_epi16(0x1001));
  return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
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

template <int kBits>
[[gnu::always_inline]] inline void store_codes(std::byte* codes, __m256i values) {
  if constexpr (kBits == 4)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), nibbles(values));
  else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), values);
}

// `count` values that share a scale; the first on a whole byte.
template <class Source, class Encoder, int kBits>
RoundingError encode_span(const std::byte* source, int64_t count, float scale, float max, std::byte* codes) {
  constexpr int64_t kWord = sizeof(typename Source::Word), kFlush = 64 * kStep, kPerByte = 8 / kBits;
  const __m256 divisor = _mm256_set1_ps(scale), largest = _mm256_set1_ps(max);
  RoundingError total;
  for (int64_t begin = 0; begin < count; begin += kFlush) {
    const int64_t end = std::min(count, begin + kFlush);
    ErrorLanes error;
    int64_t i = begin;
    for (; i + kStep <= end; i += kStep)
      store_codes<kBits>(codes + i / kPerByte,
                         encode_step<Source, Encoder>(source + i * kWord, divisor, largest, error));
    if (i < end) {
      std::byte values[kStep * kWord] = {}, bytes[kStep];
      std::memcpy(values, source + i * kWord, static_cast<size_t>((end - i) * kWord));
      store_codes<kBits>(bytes, encode_step<Source, Encoder>(values, divisor, largest, error));
      std::memcpy(codes + i / kPerByte, bytes, static_cast<size_t>((end - i + kPerByte - 1) / kPerByte));
    }
    total.difference += static_cast<double>(sum_lanes(error.difference));
    total.value += static_cast<double>(sum_lanes(error.value));
  }
  const double unit = static_cast<double>(scale) * static_cast<double>(scale);
  return {total.difference * unit, total.value * unit};
}

// Elements without a vector encoder, zero points, groups that end inside a byte: the definition itself.
template <class Source>
RoundingError encode_span_slow(const std::byte* source, int64_t count, ScaleAndZero group, const TensorFormat& format,
                               std::byte* row_codes, int64_t first) {
  const ElementType element = format.element;
  RoundingError error;
  for (int64_t i = 0; i < count; ++i) {
    typename Source::Word bits;
    std::memcpy(&bits, source + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    const float value = Source::widen(bits);
    if (format.zero_points)
      store_integer(element, row_codes, static_cast<size_t>(first + i), integer_code(value, group, element));
    else
      store_element(element, row_codes, static_cast<size_t>(first + i), value / group.scale);
    const double stored =
        static_cast<double>(load_element(element, row_codes, static_cast<size_t>(first + i)) - group.zero);
    const double difference = static_cast<double>(value) - stored * static_cast<double>(group.scale);
    error += {difference * difference, static_cast<double>(value) * static_cast<double>(value)};
  }
  return error;
}

template <class Source>
RoundingError encode_group(const std::byte* source, int64_t count, ScaleAndZero group, const TensorFormat& format,
                           std::byte* row_codes, int64_t first) {
  const float max = element_info(format.element).max, scale = group.scale;
  const int bits = element_bits(format.element);
  if (format.zero_points || first * bits % 8 != 0)
    return encode_span_slow<Source>(source, count, group, format, row_codes, first);
  std::byte* codes = row_codes + first * bits / 8;
  switch (format.element) {
    case ElementType::kE4m3:
      return encode_span<Source, E4m3Encoder, 8>(source, count, scale, max, codes);
    case ElementType::kE5m2:
      return encode_span<Source, E5m2Encoder, 8>(source, count, scale, max, codes);
    case ElementType::kInt8:
      return encode_span<Source, IntegerEncoder, 8>(source, count, scale, max, codes);
    case ElementType::kE2m1:
      return encode_span<Source, E2m1Encoder, 4>(source, count, scale, max, codes);
    case ElementType::kInt4:
      return encode_span<Source, IntegerEncoder, 4>(source, count, scale, max, codes);
    default:
      return encode_span_slow<Source>(source, count, group, format, row_codes, first);
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
struct Groups {
  int64_t row_step, col_step, grid_cols;

  Groups(const RowsView& rows, const TensorFormat& format)
      : row_step(format.granularity == Granularity::kBlock ? format.block_rows
                 : format.granularity == Granularity::kRow ? 1
                                                           : std::max<int64_t>(rows.rows, 1)),
        col_step(format.granularity == Granularity::kBlock ? format.block_cols : std::max<int64_t>(rows.cols, 1)),
        grid_cols(format.scale_cols(rows.cols)) {}
};

template <class Source>
void amax_of(const RowsView& rows, const TensorFormat& format, std::span<float> amax) {
  const Groups groups(rows, format);
  std::vector<typename Source::Word> most(amax.size(), 0);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::byte* row = rows.data + r * rows.cols * static_cast<int64_t>(sizeof(typename Source::Word));
    for (int64_t c = 0, g = r / groups.row_step * groups.grid_cols; c < rows.cols; c += groups.col_step, ++g) {
      auto& group = most[static_cast<size_t>(g)];
      group = std::max(group, largest_bits<Source>(row + c * static_cast<int64_t>(sizeof group),
                                                   std::min(groups.col_step, rows.cols - c)));
    }
  }
  for (size_t g = 0; g < amax.size(); ++g) amax[g] = most[g] >= Source::kInfinity ? INFINITY : Source::widen(most[g]);
}

template <class Source>
RoundingError encode_all(const RowsView& rows, const TensorFormat& format, const ScaleGrid& grid, std::byte* codes) {
  const Groups groups(rows, format);
  const int64_t row_bytes = format.element_bytes(1, rows.cols);
  RoundingError error;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::byte* row = rows.data + r * rows.cols * static_cast<int64_t>(sizeof(typename Source::Word));
    for (int64_t c = 0, g = r / groups.row_step * groups.grid_cols; c < rows.cols; c += groups.col_step, ++g) {
      ScaleAndZero group{grid.scales[static_cast<size_t>(g)],
                         format.zero_points ? grid.zeros[static_cast<size_t>(g)] : 0.0f};
      if (is_nan(group.scale)) continue;  // codes stay 0
      if (format.outer()) group.scale = grid.outer.over(group.scale);
      error += encode_group<Source>(row + c * static_cast<int64_t>(sizeof(typename Source::Word)),
                                    std::min(groups.col_step, rows.cols - c), group, format, codes + r * row_bytes, c);
    }
  }
  return error;
}

// Scales and zero points of formats that have both.
template <class Source>
void ranges_to_grid(const RowsView& rows, const TensorFormat& format, const ScaleGrid& grid) {
  const Groups groups(rows, format);
  std::vector<float> low(grid.scales.size(), INFINITY), high(grid.scales.size(), -INFINITY);
  for (int64_t r = 0; r < rows.rows; ++r)
    for (int64_t c = 0; c < rows.cols; ++c) {
      typename Source::Word bits;
      std::memcpy(&bits, rows.data + (r * rows.cols + c) * static_cast<int64_t>(sizeof bits), sizeof bits);
      const float x = Source::widen(bits);
      const auto g = static_cast<size_t>(r / groups.row_step * groups.grid_cols + c / groups.col_step);
      low[g] = is_finite(x) ? std::min(low[g], x) : -INFINITY;
      high[g] = is_finite(x) ? std::max(high[g], x) : INFINITY;
    }
  for (size_t g = 0; g < grid.scales.size(); ++g) {
    const ScaleAndZero group = scale_from_range(low[g], high[g], format);
    grid.scales[g] = group.scale;
    grid.zeros[g] = group.zero;
  }
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

RoundingError encode_rows(const RowsView& rows, const TensorFormat& format, const ScaleGrid& grid,
                          std::span<std::byte> codes) {
  check_grid(rows, format, grid.scales.size());
  OCTAVO_CHECK(!format.zero_points || grid.zeros.size() == grid.scales.size(), "{} zero points", grid.zeros.size());
  const int64_t bytes = format.element_bytes(rows.rows, rows.cols);
  OCTAVO_CHECK(static_cast<int64_t>(codes.size()) == bytes, "{} bytes of codes, {} expected", codes.size(), bytes);
  std::memset(codes.data(), 0, codes.size());
  return with_source(rows, [&]<class Source>() { return encode_all<Source>(rows, format, grid, codes.data()); });
}

RoundingError quantize_rows(const RowsView& rows, const TensorFormat& format, const ScaleGrid& grid,
                            std::span<std::byte> codes) {
  if (format.zero_points) {
    check_grid(rows, format, grid.scales.size());
    OCTAVO_CHECK(grid.zeros.size() == grid.scales.size(), "{} zero points", grid.zeros.size());
    with_source(rows, [&]<class Source>() { ranges_to_grid<Source>(rows, format, grid); });
  } else {
    group_amax(rows, format, grid.scales);
    for (float& scale : grid.scales) scale = scale_from_amax(scale, format, grid.outer);
  }
  return encode_rows(rows, format, grid, codes);
}

RoundingError encode_rows(const RowsView& rows, const TensorFormat& format, std::span<const float> scales,
                          std::span<std::byte> codes) {
  OCTAVO_CHECK(!format.zero_points && !format.outer(), "{} needs more than scales", format.describe());
  std::vector<float> copy(scales.begin(), scales.end());
  return encode_rows(rows, format, ScaleGrid{.scales = copy}, codes);
}

RoundingError quantize_rows(const RowsView& rows, const TensorFormat& format, std::span<float> scales,
                            std::span<std::byte> codes) {
  OCTAVO_CHECK(!format.zero_points && !format.outer(), "{} needs more than scales", format.describe());
  return quantize_rows(rows, format, ScaleGrid{.scales = scales}, codes);
}

Matrix unrounded_matrix(const TensorFormat& format, int64_t rows, int64_t cols, float shared_amax) {
  Matrix out = make_matrix(format, rows, cols);
  if (format.outer()) out.outer = outer_from_amax(shared_amax, format);
  if (format.granularity == Granularity::kTensor) out.scales[0] = scale_from_amax(shared_amax, format);
  return out;
}

RoundingError round_into(Matrix& out, int64_t begin, const RowsView& rows) {
  const TensorFormat& format = out.format;
  const auto first = static_cast<size_t>(out.view().grid_index(begin, 0)),
             count = static_cast<size_t>(format.scale_rows(rows.rows) * format.scale_cols(rows.cols));
  const std::span<float> zeros(out.zeros);
  const ScaleGrid grid{.scales = std::span(out.scales).subspan(first, count),
                       .zeros = format.zero_points ? zeros.subspan(first, count) : zeros,
                       .outer = out.outer};
  const std::span<std::byte> codes{out.codes.data() + format.element_bytes(begin, rows.cols),
                                   static_cast<size_t>(format.element_bytes(rows.rows, rows.cols))};
  return format.granularity == Granularity::kTensor ? encode_rows(rows, format, grid, codes)
                                                    : quantize_rows(rows, format, grid, codes);
}

Matrix round_matrix(const RowsView& rows, const TensorFormat& format, float shared_amax) {
  Matrix out = unrounded_matrix(format, rows.rows, rows.cols, shared_amax);
  round_into(out, 0, rows);
  return out;
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
