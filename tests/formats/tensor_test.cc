// Scales and groups with values worked out by hand.
#include "formats/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "numerics/bits.h"

namespace octavo {
namespace {

TEST(ScaleFromAmax, IsAmaxOverTheLargestElement) {
  const TensorFormat e4m3 = row_format(ElementType::kE4m3), int8 = row_format(ElementType::kInt8);
  EXPECT_EQ(scale_from_amax(448.0f, e4m3), 1.0f);
  EXPECT_EQ(scale_from_amax(1.0f, e4m3), 1.0f / 448.0f);
  EXPECT_EQ(scale_from_amax(254.0f, int8), 2.0f);
  EXPECT_EQ(scale_from_amax(57344.0f, row_format(ElementType::kE5m2)), 1.0f);
  EXPECT_EQ(scale_from_amax(12.0f, row_format(ElementType::kE2m1)), 2.0f);
}

TEST(ScaleFromAmax, IsNeverZeroSubnormalOrNegative) {
  const TensorFormat format = row_format(ElementType::kE4m3);
  EXPECT_EQ(scale_from_amax(0.0f, format), 1.0f);
  EXPECT_EQ(scale_from_amax(1e-38f, format), 0x1p-126f);
  EXPECT_EQ(scale_from_amax(1e-45f, format), 0x1p-126f);
  EXPECT_TRUE(is_nan(scale_from_amax(INFINITY, format)));
  EXPECT_TRUE(is_nan(scale_from_amax(NAN, format)));
  EXPECT_TRUE(is_finite(scale_from_amax(3.4e38f, format)));
}

TEST(ScaleFromAmax, PowersOfTwoRoundUp) {
  const TensorFormat format = block_format(ElementType::kE4m3, 128, 128, ElementType::kE8m0);
  EXPECT_EQ(scale_from_amax(1.0f, format), 0x1p-8f);
  EXPECT_EQ(scale_from_amax(3.5f, format), 0x1p-7f);
  EXPECT_EQ(scale_from_amax(448.0f, format), 1.0f);
  EXPECT_EQ(scale_from_amax(450.0f, format), 2.0f);
  EXPECT_EQ(scale_from_amax(0.0001f, format), 0x1p-22f);
  EXPECT_EQ(scale_from_amax(0.0f, format), 1.0f);
}

int code_at(const Matrix& matrix, size_t i) {
  return std::to_integer<int>(matrix.codes.data()[i]);
}

TEST(Quantize, PerRow) {
  const std::vector<float> values = {448, -17, 1, 0, 2, 0.5f};
  const Matrix matrix = quantize(values, 2, 3, row_format(ElementType::kE4m3));
  EXPECT_EQ(matrix.scales, (std::vector<float>{1.0f, 2.0f / 448.0f}));
  EXPECT_EQ(code_at(matrix, 0), 0x7E);
  EXPECT_EQ(code_at(matrix, 1), 0xD8);  // -16: 17 is a tie
  EXPECT_EQ(code_at(matrix, 2), 0x38);
  EXPECT_EQ(code_at(matrix, 3), 0x00);
  EXPECT_EQ(code_at(matrix, 4), 0x7E);
  EXPECT_EQ(code_at(matrix, 5), 0x6E);  // 112
  EXPECT_EQ(dequantize(matrix.view())[1], -16.0f);
}

TEST(Quantize, PerTensor) {
  const Matrix matrix = quantize(std::vector<float>{1, 2, -254, 3}, 2, 2, tensor_wide_format(ElementType::kInt8));
  EXPECT_EQ(matrix.scales, std::vector<float>{2.0f});
  EXPECT_EQ(code_at(matrix, 0), 0);  // 0.5 is a tie
  EXPECT_EQ(code_at(matrix, 1), 1);
  EXPECT_EQ(code_at(matrix, 2), 0x81);  // -127
  EXPECT_EQ(code_at(matrix, 3), 2);     // 1.5 is a tie
}

TEST(Quantize, PerBlockWithRaggedEdges) {
  // 3 x 5 in blocks of 2 x 2: grid 2 x 3; each value tells its block.
  std::vector<float> values;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 5; ++c) values.push_back(std::ldexp(448.0f, r / 2 + 2 * (c / 2)));
  const Matrix matrix = quantize(values, 3, 5, block_format(ElementType::kE4m3, 2, 2));
  EXPECT_EQ(matrix.scales, (std::vector<float>{1, 4, 16, 2, 8, 32}));
  EXPECT_EQ(dequantize(matrix.view()), values);
  EXPECT_EQ(matrix.view().scale_at(2, 4), 32.0f);
  EXPECT_EQ(matrix.view().scale_at(1, 1), 1.0f);
}

TEST(Quantize, ZeroGroupsAndBrokenGroups) {
  const Matrix matrix =
      quantize(std::vector<float>{0, -0.0f, 1, NAN, INFINITY, 2}, 3, 2, row_format(ElementType::kE4m3));
  EXPECT_EQ(matrix.scales[0], 1.0f);
  EXPECT_EQ(code_at(matrix, 0), 0x00);
  EXPECT_EQ(code_at(matrix, 1), 0x80);
  for (const size_t row : {1u, 2u}) {
    EXPECT_TRUE(is_nan(matrix.scales[row]));
    EXPECT_EQ(code_at(matrix, 2 * row), 0);
    EXPECT_EQ(code_at(matrix, 2 * row + 1), 0);
  }
}

TEST(Quantize, PlainFormatsRoundAndHaveNoScales) {
  const Matrix matrix = quantize(std::vector<float>{1.00390625f, 1.01171875f}, 1, 2, plain_format(ElementType::kBf16));
  EXPECT_TRUE(matrix.scales.empty());
  EXPECT_EQ(dequantize(matrix.view()), (std::vector<float>{1.0f, 1.015625f}));
}

TEST(Quantize, NibblesAreLowFirstAndRowsStartOnBytes) {
  const Matrix matrix = quantize(std::vector<float>{7, -7, 1, 2, 3, -4}, 2, 3, tensor_wide_format(ElementType::kInt4));
  ASSERT_EQ(matrix.codes.size(), 4u);
  EXPECT_EQ(code_at(matrix, 0), 0x97);  // 7 low, -7 high
  EXPECT_EQ(code_at(matrix, 1), 0x01);
  EXPECT_EQ(code_at(matrix, 2), 0x32);
  EXPECT_EQ(code_at(matrix, 3), 0x0C);
  EXPECT_EQ(dequantize(matrix.view()), (std::vector<float>{7, -7, 1, 2, 3, -4}));
}

TEST(Quantize, PowerOfTwoScalesStayWithinTheErrorOfTheFormat) {
  std::vector<float> values;
  for (int i = 0; i < 4096; ++i) values.push_back(std::sin(static_cast<float>(i * i)));
  const Matrix matrix = quantize(values, 32, 128, block_format(ElementType::kE4m3, 1, 128, ElementType::kE8m0));
  const std::vector<float> decoded = dequantize(matrix.view());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_LE(std::fabs(decoded[i] - values[i]), std::fabs(values[i]) / 16 + 1e-5f);
}

TEST(Quantize, GroupsWithZeroPoints) {
  // Range -3 .. 12 is 15 steps of 1: -3 becomes code -8, so the zero point is -5. Range 15 .. 30 is widened to 0.
  const TensorFormat format = group_format(ElementType::kInt4, 2, ElementType::kF32, true);
  const Matrix matrix = quantize(std::vector<float>{-3, 12, 15, 30}, 1, 4, format);
  EXPECT_EQ(matrix.scales, (std::vector<float>{1, 2}));
  EXPECT_EQ(matrix.zeros, (std::vector<float>{-5, -8}));
  EXPECT_EQ(code_at(matrix, 0), 0x78);  // -8 low, 7 high
  EXPECT_EQ(code_at(matrix, 1), 0x70);  // 15 / 2 is a tie: 8, code 0
  EXPECT_EQ(dequantize(matrix.view()), (std::vector<float>{-3, 12, 16, 30}));
  EXPECT_EQ(matrix.view().element_at(0, 1), 12.0f);
}

TEST(Quantize, ZeroPointsOfOneSidedZeroAndBrokenGroups) {
  const TensorFormat format = group_format(ElementType::kInt4, 2, ElementType::kF32, true);
  const Matrix matrix = quantize(std::vector<float>{-15, -1, 0, 0, NAN, 1}, 1, 6, format);
  EXPECT_EQ(matrix.zeros, (std::vector<float>{7, -8, 0}));
  EXPECT_EQ(matrix.scales[1], 1.0f);
  EXPECT_TRUE(is_nan(matrix.scales[2]));
  const std::vector<float> values = dequantize(matrix.view());
  EXPECT_EQ(values[0], -15.0f);
  EXPECT_EQ(values[2], 0.0f);
  EXPECT_TRUE(is_nan(values[4]) && is_nan(values[5]));
}

TEST(Quantize, Mxfp4TakesThePowerOfTwoBelow) {
  // OCP MX: amax 7 lies under 8 = 2^3, so the scale is 2^(2 - 2) and 7 saturates to 6.
  const TensorFormat format = group_format(ElementType::kE2m1, 32, ElementType::kE8m0);
  for (const auto& [amax, scale] : {std::pair{3.0f, 0.5f}, {4.0f, 1.0f}, {6.0f, 1.0f}, {7.0f, 1.0f}, {8.0f, 2.0f}})
    EXPECT_EQ(scale_from_amax(amax, format), scale) << amax;
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(i) / 4 - 4);
  const Matrix matrix = quantize(values, 1, 32, format);
  const std::vector<int> bytes = {0xEE, 0xDE, 0xDD, 0xCC, 0xCC, 0xAB, 0xAA, 0x89,
                                  0x00, 0x21, 0x22, 0x43, 0x44, 0x54, 0x55, 0x66};
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(code_at(matrix, i), bytes[i]) << i;
}

TEST(Quantize, Nvfp4HasTwoLevelsOfScales) {
  const TensorFormat format = group_format(ElementType::kE2m1, 16, ElementType::kE4m3);
  std::vector<float> values(48, 0.0f);
  values[0] = 2688.0f * 4;  // 6 x 448 x 4
  values[16] = -6.0f * 17 * 4;
  values[17] = 0.5f * 16 * 4;
  const Matrix matrix = quantize(values, 1, 48, format);
  EXPECT_EQ(matrix.outer.factor, 4.0f);
  EXPECT_EQ(matrix.scales, (std::vector<float>{448, 16, 1}));  // 17 is a tie among the E4M3 scales
  EXPECT_EQ(dequantize(matrix.view())[0], values[0]);
  EXPECT_EQ(dequantize(matrix.view())[16], -6.0f * 16 * 4) << "saturated under the rounded scale";
  EXPECT_EQ(dequantize(matrix.view())[17], values[17]);
  // A divisor rounds once, as its dialect's library does.
  MatrixView view = matrix.view();
  view.outer = {.divisor = 3.0f};
  EXPECT_EQ(view.scale_at(0, 16), 16.0f / 3.0f);
}

TEST(Quantize, ScalesAreRoundedToTheirType) {
  const float third = 7.0f / 3.0f;
  const auto scale = [&](ElementType type) {
    return scale_from_amax(third, group_format(ElementType::kInt4, 8, type));
  };
  EXPECT_EQ(scale(ElementType::kF32), third / 7.0f);
  EXPECT_EQ(scale(ElementType::kF16), 0x1.554p-2f);
  EXPECT_EQ(scale(ElementType::kBf16), 0x1.56p-2f);
  EXPECT_EQ(scale_from_amax(1e-30f, group_format(ElementType::kInt4, 8, ElementType::kF16)), 0x1p-24f) << "never zero";
  EXPECT_EQ(scale_from_amax(1e-30f, group_format(ElementType::kE2m1, 16, ElementType::kE4m3)), 0x1p-9f);
}

TEST(MatrixView, SlabsSeeTheirOwnGrid) {
  std::vector<float> values;
  for (int i = 0; i < 6 * 8; ++i) values.push_back(static_cast<float>((i * 7) % 23) - 9);
  for (const TensorFormat& format :
       {group_format(ElementType::kInt4, 4, ElementType::kF16, true), row_format(ElementType::kE4m3),
        group_format(ElementType::kE2m1, 4, ElementType::kE4m3), block_format(ElementType::kE4m3, 2, 4),
        tensor_wide_format(ElementType::kInt8), plain_format(ElementType::kBf16)}) {
    const Matrix matrix = quantize(values, 6, 8, format);
    const std::vector<float> all = dequantize(matrix.view()), part = dequantize(matrix.view().slab(2, 6));
    EXPECT_EQ(part, std::vector<float>(all.begin() + 16, all.end())) << format.describe();
    for (int i = 0; i < 48; ++i) EXPECT_EQ(matrix.view().at(i / 8, i % 8), all[static_cast<size_t>(i)]);
  }
}

TEST(TensorFormat, GridsAndBytes) {
  const TensorFormat block = block_format(ElementType::kE4m3, 128, 128);
  EXPECT_EQ(block.scale_rows(576), 5);
  EXPECT_EQ(block.scale_cols(7168), 56);
  EXPECT_EQ(block.scale_bytes(576, 7168), 5 * 56 * 4);
  EXPECT_EQ(block_format(ElementType::kE4m3, 1, 128, ElementType::kE8m0).scale_bytes(2, 300), 2 * 3);
  EXPECT_EQ(row_format(ElementType::kInt8).scale_rows(7), 7);
  EXPECT_EQ(row_format(ElementType::kInt8).scale_cols(9), 1);
  EXPECT_EQ(tensor_wide_format(ElementType::kInt8).scale_bytes(7, 9), 4);
  EXPECT_EQ(plain_format(ElementType::kBf16).scale_rows(7), 0);
  EXPECT_EQ(plain_format(ElementType::kBf16).element_bytes(3, 5), 30);
  EXPECT_EQ(row_format(ElementType::kInt4).element_bytes(3, 5), 9) << "rows are whole bytes";
  EXPECT_FALSE(plain_format(ElementType::kF32).scaled());
  EXPECT_EQ(group_format(ElementType::kInt4, 32, ElementType::kF16, true).scale_bytes(3, 96), 9 * 2 + 5);
  EXPECT_EQ(group_format(ElementType::kE2m1, 16, ElementType::kE4m3).scale_bytes(2, 40), 6 + 4);
}

TEST(TensorFormat, Describes) {
  EXPECT_EQ(plain_format(ElementType::kBf16).describe(), "bf16");
  EXPECT_EQ(row_format(ElementType::kE4m3).describe(), "fp8_e4m3 per row");
  EXPECT_EQ(tensor_wide_format(ElementType::kE5m2).describe(), "fp8_e5m2 per tensor");
  EXPECT_EQ(block_format(ElementType::kE4m3, 1, 128, ElementType::kE8m0).describe(), "fp8_e4m3 per 1x128, e8m0 scales");
  EXPECT_EQ(group_format(ElementType::kInt4, 32, ElementType::kF16, true).describe(),
            "int4 per 1x32, float16 scales, zero points");
}

TEST(ElementTypes, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(ElementType::kBool); ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_EQ(element_info(type).type, type);
    EXPECT_EQ(element_from_name(element_name(type)), type);
    if (!element_info(type).safetensors.empty()) {
      EXPECT_EQ(element_from_safetensors(element_info(type).safetensors), type);
    }
  }
  EXPECT_FALSE(element_from_name("fp8").has_value());
  EXPECT_FALSE(element_from_safetensors("").has_value());
  EXPECT_FALSE(element_from_safetensors("F8_E4M3FNUZ").has_value());
}

TEST(ElementTypes, LoadsEveryTypeFromUnalignedBytes) {
  const auto load = [](ElementType type, auto value) {
    std::byte bytes[17] = {};
    std::memcpy(bytes + 1, &value, sizeof value);
    return load_element(type, bytes + 1, 0);
  };
  EXPECT_EQ(load(ElementType::kF32, -2.5f), -2.5f);
  EXPECT_EQ(load(ElementType::kF64, 0.1), 0.1f);
  EXPECT_EQ(load(ElementType::kF16, uint16_t{0x3C00}), 1.0f);
  EXPECT_EQ(load(ElementType::kBf16, uint16_t{0xC000}), -2.0f);
  EXPECT_EQ(load(ElementType::kInt8, int8_t{-128}), -128.0f);
  EXPECT_EQ(load(ElementType::kUint8, uint8_t{255}), 255.0f);
  EXPECT_EQ(load(ElementType::kInt16, int16_t{-300}), -300.0f);
  EXPECT_EQ(load(ElementType::kUint16, uint16_t{65535}), 65535.0f);
  EXPECT_EQ(load(ElementType::kInt32, int32_t{-70000}), -70000.0f);
  EXPECT_EQ(load(ElementType::kUint32, uint32_t{4000000000u}), 4e9f);
  EXPECT_EQ(load(ElementType::kInt64, int64_t{-5}), -5.0f);
  EXPECT_EQ(load(ElementType::kUint64, uint64_t{1} << 63), 0x1p63f);
  EXPECT_EQ(load(ElementType::kBool, uint8_t{1}), 1.0f);
  EXPECT_EQ(load(ElementType::kE8m0, uint8_t{0x80}), 2.0f);
  const uint8_t nibbles = 0x9F;
  EXPECT_EQ(load_element(ElementType::kE2m1, &nibbles, 0), -6.0f);
  EXPECT_EQ(load_element(ElementType::kE2m1, &nibbles, 1), -0.5f);
  EXPECT_EQ(load_element(ElementType::kInt4, &nibbles, 0), -1.0f);
  EXPECT_EQ(load_element(ElementType::kInt4, &nibbles, 1), -7.0f);
}

TEST(ElementTypes, StoredNanCodesAreRecognized) {
  const uint8_t e4m3[] = {0x7F, 0xFF, 0x7E, 0x00};
  EXPECT_TRUE(is_nan_element(ElementType::kE4m3, e4m3, 0));
  EXPECT_TRUE(is_nan_element(ElementType::kE4m3, e4m3, 1));
  EXPECT_FALSE(is_nan_element(ElementType::kE4m3, e4m3, 2));
  EXPECT_FALSE(is_nan_element(ElementType::kInt8, e4m3, 1));
  EXPECT_TRUE(is_nan_element(ElementType::kE8m0, e4m3, 1));
}

TEST(Shapes, TextSizesAndRows) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({576, 1536}), "[576, 1536]");
  const TensorView view{ElementType::kF32, {2, 3, 4}, {}};
  EXPECT_EQ(view.size(), 24);
  EXPECT_EQ(view.rows(), 6);
  EXPECT_EQ(view.cols(), 4);
  const TensorView scalar{ElementType::kF32, {}, {}};
  EXPECT_EQ(scalar.size(), 1);
  EXPECT_EQ(scalar.cols(), 1);
}

}  // namespace
}  // namespace octavo
