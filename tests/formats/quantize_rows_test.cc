// quantize_rows() against quantize(), bit for bit.
#include "formats/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "numerics/bits.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

const std::vector<TensorFormat>& formats() {
  static const std::vector<TensorFormat> kFormats = {
      row_format(ElementType::kE4m3),
      row_format(ElementType::kE5m2),
      row_format(ElementType::kInt8),
      row_format(ElementType::kE2m1),
      row_format(ElementType::kInt4),
      tensor_wide_format(ElementType::kE4m3),
      tensor_wide_format(ElementType::kInt8),
      block_format(ElementType::kE4m3, 128, 128),
      block_format(ElementType::kE4m3, 128, 128, ElementType::kE8m0),
      block_format(ElementType::kE4m3, 1, 128),
      block_format(ElementType::kInt8, 1, 32),
      block_format(ElementType::kE4m3, 3, 5),
      group_format(ElementType::kInt4, 128, ElementType::kF16),
      group_format(ElementType::kInt4, 32, ElementType::kF32, true),
      group_format(ElementType::kInt4, 7, ElementType::kBf16),
      group_format(ElementType::kInt8, 32, ElementType::kF16, true),
      group_format(ElementType::kE2m1, 32, ElementType::kE8m0),
      group_format(ElementType::kE2m1, 16, ElementType::kE4m3),
      group_format(ElementType::kE4m3, 32, ElementType::kE8m0),
  };
  return kFormats;
}

// Values rounded to `element` and their FP32 equals.
struct Source {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  RowsView view;
};

Source make_source(ElementType element, std::vector<float> values, int64_t rows, int64_t cols) {
  Source source;
  const size_t width = static_cast<size_t>(element_bits(element)) / 8;
  source.bytes.resize(values.size() * width);
  for (size_t i = 0; i < values.size(); ++i) {
    if (element == ElementType::kF32)
      std::memcpy(source.bytes.data() + i * 4, &values[i], 4);
    else
      store_element(element, source.bytes.data(), i, values[i]);
    source.values.push_back(load_element(element, source.bytes.data(), i));
  }
  source.view = {element, source.bytes.data(), rows, cols};
  return source;
}

void expect_same(const Source& source, const TensorFormat& format, const std::string& what) {
  const Matrix expected = quantize(source.values, source.view.rows, source.view.cols, format);
  std::vector<float> scales(expected.scales.size(), -1.0f);
  std::vector<std::byte> codes(expected.codes.size(), std::byte{0x55});
  std::vector<float> zeros(format.zero_points ? scales.size() : 0);
  quantize_rows(source.view, format, ScaleGrid{.scales = scales, .zeros = zeros, .outer = expected.outer}, codes);
  EXPECT_EQ(zeros, expected.zeros) << what << ", " << format.describe();
  for (size_t i = 0; i < scales.size(); ++i)
    ASSERT_EQ(float_bits(scales[i]), float_bits(expected.scales[i]))
        << what << ", " << format.describe() << ", scale " << i;
  for (size_t i = 0; i < codes.size(); ++i)
    ASSERT_EQ(codes[i], expected.codes.data()[i]) << what << ", " << format.describe() << ", code " << i;
}

TEST(QuantizeRows, EqualsTheDefinitionOnRandomData) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16, ElementType::kF16})
    for (const auto& [rows, cols] : {std::pair{1, 1}, {1, 31}, {2, 33}, {5, 127}, {130, 131}, {129, 320}, {7, 2500}}) {
      std::vector<float> values(static_cast<size_t>(rows * cols));
      for (float& value : values) value = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 12) - 8);
      const Source source = make_source(element, values, rows, cols);
      for (const TensorFormat& format : formats()) expect_same(source, format, std::string(element_name(element)));
    }
}

TEST(QuantizeRows, EqualsTheDefinitionOnEveryBf16) {
  // Every finite BF16, in rows of one binade, so that ties, subnormals and saturation all occur under some scale.
  std::vector<float> values;
  for (uint32_t code = 0; code < 0x10000; ++code)
    if (is_finite(Bf16::decode(code))) values.push_back(Bf16::decode(code));
  for (const int64_t cols : {128, 255}) {
    const int64_t rows = static_cast<int64_t>(values.size()) / cols;
    std::vector<float> some(values.begin(), values.begin() + rows * cols);
    const Source source = make_source(ElementType::kBf16, some, rows, cols);
    for (const TensorFormat& format : formats()) expect_same(source, format, "all BF16");
  }
}

TEST(QuantizeRows, EqualsTheDefinitionOnAwkwardValues) {
  std::vector<float> edges = {0.0f, -0.0f,  1e-38f, -1e-38f, 1e-45f, 3.4e38f, -3.4e38f,
                              1.0f, 448.0f, 464.0f, 1000.0f, 17.0f,  19.0f};
  std::mt19937 random(9);
  for (const int cols : {13, 32, 64, 100}) {
    for (int mode = 0; mode < 6; ++mode) {
      std::vector<float> values(static_cast<size_t>(4 * cols), 0.0f);
      if (mode == 1) values[3] = 1e-38f;
      if (mode == 2) values[5] = -1e-44f;
      if (mode >= 3)
        for (float& value : values) value = edges[random() % edges.size()];
      if (mode == 4)
        for (float& value : values)
          value = bits_float(static_cast<uint32_t>(random()) & 0x800FFFFF);  // tiny and subnormal
      if (mode == 5) values[7] = NAN, values[static_cast<size_t>(cols) + 1] = INFINITY;
      const Source source = make_source(ElementType::kF32, values, 4, cols);
      for (const TensorFormat& format : formats()) expect_same(source, format, "mode " + std::to_string(mode));
    }
  }
}

TEST(QuantizeRows, FixedScaleGivesTheKnownCodesAtEveryPosition) {
  const std::vector<std::pair<float, int>> vectors = {
      {448, 0x7E},     {464, 0x7E},     {465, 0x7E},      {1000, 0x7E},
      {-1000, 0xFE},   {256, 0x78},     {300, 0x79},      {304, 0x7A},
      {17, 0x58},      {18, 0x59},      {19, 0x5A},       {1.0625f, 0x38},
      {1.1875f, 0x3A}, {0x1p-9f, 0x01}, {0x1p-10f, 0x00}, {1.0001f * 0x1p-10f, 0x01},
      {0x1p-6f, 0x08}, {-0.0f, 0x80}};
  const std::vector<float> one = {1.0f};
  for (int length = 1; length <= 67; ++length)
    for (const auto& [value, code] : vectors) {
      std::vector<float> values(static_cast<size_t>(length), value);
      std::vector<std::byte> codes(values.size());
      const Source source = make_source(ElementType::kF32, values, 1, length);
      encode_rows(source.view, tensor_wide_format(ElementType::kE4m3), one, codes);
      for (const std::byte got : codes) ASSERT_EQ(std::to_integer<int>(got), code) << value << ", length " << length;
    }
}

TEST(QuantizeRows, SlabsWithOneTensorScaleEqualTheWhole) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(300 * 77);
  for (float& value : values) value = normal(random);
  const Source source = make_source(ElementType::kBf16, values, 300, 77);
  const TensorFormat format = tensor_wide_format(ElementType::kE4m3);
  const Matrix expected = quantize(source.values, 300, 77, format);
  float amax = 0;
  for (int64_t begin = 0; begin < 300; begin += 128) {
    float slab_amax = 0;
    group_amax({source.view.element, source.view.data + begin * 77 * 2, std::min<int64_t>(128, 300 - begin), 77},
               format, {&slab_amax, 1});
    amax = std::max(amax, slab_amax);
  }
  const float scale = scale_from_amax(amax, format);
  EXPECT_EQ(scale, expected.scales[0]);
  for (int64_t begin = 0; begin < 300; begin += 128) {
    const int64_t rows = std::min<int64_t>(128, 300 - begin);
    std::vector<std::byte> codes(static_cast<size_t>(rows * 77));
    encode_rows({source.view.element, source.view.data + begin * 77 * 2, rows, 77}, format, {&scale, 1}, codes);
    EXPECT_EQ(std::memcmp(codes.data(), expected.codes.data() + begin * 77, codes.size()), 0);
  }
}

TEST(QuantizeRows, MeasuresTheRelativeError) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  struct Expected {
    TensorFormat format;
    double error, tolerance;
  };
  for (const float magnitude : {1.0f, 1e-25f, 1e15f}) {
    std::vector<float> values(64 * 1024);
    for (float& value : values) value = normal(random) * magnitude;
    const Source source = make_source(ElementType::kF32, values, 64, 1024);
    for (const Expected& expected : {Expected{row_format(ElementType::kE4m3), 0.0265, 0.001},
                                     Expected{row_format(ElementType::kInt8), 0.0074, 0.0008}}) {
      std::vector<float> scales(64);
      std::vector<std::byte> codes(values.size());
      const RoundingError error = quantize_rows(source.view, expected.format, scales, codes);
      EXPECT_NEAR(error.relative_rms(), expected.error, expected.tolerance) << magnitude;
      const std::vector<float> decoded = dequantize({expected.format, 64, 1024, codes.data(), scales.data()});
      double difference = 0, value = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double d = double(decoded[i]) - double(values[i]);
        difference += d * d;
        value += double(values[i]) * double(values[i]);
      }
      EXPECT_NEAR(error.relative_rms() / std::sqrt(difference / value), 1.0, 1e-4);
    }
  }
  EXPECT_EQ(RoundingError{}.relative_rms(), 0.0);
}

TEST(QuantizeRows, FindsTheFirstBrokenValue) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16, ElementType::kF16}) {
    std::vector<float> values(10 * 50, 1.0f);
    EXPECT_FALSE(find_non_finite(make_source(element, values, 10, 50).view).has_value());
    Source source = make_source(element, values, 10, 50);
    const size_t width = static_cast<size_t>(element_bits(element)) / 8;
    // All ones is a NaN in each of the three.
    std::memset(source.bytes.data() + (7 * 50 + 49) * width, 0xFF, width);
    std::memset(source.bytes.data() + (8 * 50 + 1) * width, 0xFF, width);
    const auto found = find_non_finite(source.view);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->row, 7);
    EXPECT_EQ(found->col, 49);
  }
}

}  // namespace
}  // namespace octavo
