// What holds for all codes and all values: round trips, order, nearest with ties to even, NaN, saturation.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <random>

#include "numerics/bits.h"
#include "numerics/e8m0.h"
#include "numerics/integer.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Format>
class MinifloatTest : public testing::Test {};
using Formats = testing::Types<E4m3, E5m2, E2m1, Bf16, F16>;
TYPED_TEST_SUITE(MinifloatTest, Formats);

TYPED_TEST(MinifloatTest, EveryCodeSurvivesARoundTrip) {
  for (uint32_t code = 0; code < (1u << TypeParam::kBits); ++code) {
    const float value = TypeParam::decode(code);
    if (is_nan(value)) {
      EXPECT_TRUE(TypeParam::is_nan_code(code));
      const uint32_t again = TypeParam::encode(value);
      EXPECT_TRUE(TypeParam::is_nan_code(again)) << code;
      EXPECT_EQ(again & TypeParam::kSignBit, code & TypeParam::kSignBit) << code;
    } else {
      ASSERT_EQ(TypeParam::encode(value, false), code);
      ASSERT_EQ(TypeParam::encode(value, true),
                is_finite(value) ? code : (code & TypeParam::kSignBit) | TypeParam::kMaxCode);
    }
  }
}

TYPED_TEST(MinifloatTest, DecodingIsMonotonicAndSymmetric) {
  for (uint32_t code = 0; code < TypeParam::kMaxCode; ++code) {
    ASSERT_LT(TypeParam::decode(code), TypeParam::decode(code + 1));
    ASSERT_EQ(float_bits(TypeParam::decode(code | TypeParam::kSignBit)),
              float_bits(TypeParam::decode(code)) | 0x80000000u);
  }
}

TYPED_TEST(MinifloatTest, MidpointsGoToTheEvenCode) {
  for (uint32_t code = 0; code < TypeParam::kMaxCode; ++code) {
    const double low = TypeParam::decode(code), high = TypeParam::decode(code + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    if (static_cast<double>(middle) != (low + high) / 2) continue;  // below FP32's own resolution
    ASSERT_EQ(TypeParam::encode(middle), code % 2 == 0 ? code : code + 1) << code;
    ASSERT_EQ(TypeParam::encode(std::nextafterf(middle, 0.0f)), code) << code;
    ASSERT_EQ(TypeParam::encode(std::nextafterf(middle, kInfinity)), code + 1) << code;
    ASSERT_EQ(TypeParam::encode(-middle), TypeParam::kSignBit | (code % 2 == 0 ? code : code + 1)) << code;
  }
}

TYPED_TEST(MinifloatTest, EncodingNeverDecreases) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float a = bits_float(static_cast<uint32_t>(random()) % 0x7F800000u),
                b = bits_float(static_cast<uint32_t>(random()) % 0x7F800000u);
    ASSERT_LE(TypeParam::encode(std::min(a, b)), TypeParam::encode(std::max(a, b))) << a << " " << b;
  }
}

TEST(E4m3, OverflowAndSpecials) {
  EXPECT_EQ(E4m3::encode(464.0f, false), 0x7Eu) << "a tie with the first value that is not there goes to the even code";
  EXPECT_EQ(E4m3::encode(std::nextafterf(464.0f, 500.0f), false), 0x7Fu);
  EXPECT_EQ(E4m3::encode(1e30f), 0x7Eu);
  EXPECT_EQ(E4m3::encode(kInfinity), 0x7Eu);
  EXPECT_EQ(E4m3::encode(-kInfinity), 0xFEu);
  EXPECT_EQ(E4m3::encode(kInfinity, false), 0x7Fu);
  EXPECT_EQ(E4m3::encode(NAN), 0x7Fu);
  EXPECT_EQ(E4m3::encode(-NAN), 0xFFu);
  EXPECT_EQ(E4m3::encode(-0.0f), 0x80u);
  int nans = 0;
  for (uint32_t code = 0; code < 256; ++code) nans += is_nan(E4m3::decode(code)) ? 1 : 0;
  EXPECT_EQ(nans, 2);
}

TEST(E5m2, OverflowAndSpecials) {
  EXPECT_EQ(E5m2::encode(61440.0f, false), 0x7Cu);
  EXPECT_EQ(E5m2::encode(61440.0f), 0x7Bu);
  EXPECT_EQ(E5m2::encode(-kInfinity, false), 0xFCu);
  EXPECT_EQ(E5m2::decode(0x7C), kInfinity);
  EXPECT_TRUE(is_nan(E5m2::decode(0x7D)));
}

TEST(E2m1, HasNoSpecials) {
  EXPECT_EQ(E2m1::encode(1e9f, false), 7u);
  EXPECT_EQ(E2m1::encode(-kInfinity), 15u);
  EXPECT_EQ(E2m1::encode(NAN), 0u);
  for (uint32_t code = 0; code < 16; ++code) EXPECT_TRUE(is_finite(E2m1::decode(code)));
}

// The inputs are volatile: nothing may be computed before the flags are set.
bool subnormals_and_ties_are_right() {
  volatile uint32_t one = 1, bf16_tie = 0x00018000, two_to_minus_127_up = 0x00400001;
  volatile float above_tie = 0x1.0002p-10f, tie = 19.0f;
  return E4m3::encode(bits_float(one)) == 0 && E4m3::encode(above_tie) == 1 && E4m3::encode(tie) == 0x5A &&
         float_bits(E5m2::decode(one)) == 0x37800000u && float_bits(Bf16::decode(one)) == 0x00010000u &&
         Bf16::encode(bits_float(bf16_tie)) == 2 && F16::encode(bits_float(one)) == 0 &&
         float_bits(F16::decode(one)) == 0x33800000u &&
         float_bits(E8m0::decode(static_cast<uint8_t>(one - 1))) == 0x00400000u &&
         E8m0::encode_round_up(bits_float(two_to_minus_127_up)) == 1;
}

TEST(Codecs, DoNotDependOnFlushToZeroOrTheRoundingMode) {
  const unsigned before = _mm_getcsr();
  for (const unsigned flags : {0x8040u, 0x6000u, 0x2000u, 0xE040u}) {  // FTZ and DAZ; toward zero; down; all
    _mm_setcsr(before | flags);
    const bool same = subnormals_and_ties_are_right();
    _mm_setcsr(before);
    EXPECT_TRUE(same) << std::hex << flags;
  }
}

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    const float value = E8m0::decode(static_cast<uint8_t>(code));
    EXPECT_EQ(value, std::ldexp(1.0f, code - 127));
    EXPECT_EQ(E8m0::encode_round_up(value), code);
    EXPECT_EQ(E8m0::encode_round_up(std::nextafterf(value, kInfinity)), std::min(code + 1, 254));
  }
  EXPECT_TRUE(is_nan(E8m0::decode(0xFF)));
  for (const float bad : {0.0f, -0.0f, -1.0f, NAN, kInfinity}) EXPECT_EQ(E8m0::encode_round_up(bad), 0xFF) << bad;
  EXPECT_EQ(E8m0::encode_round_up(bits_float(1)), 0) << "the smallest power of two serves everything below it";
}

TEST(Integers, EveryCodeTiesAndSaturation) {
  for (int code = -127; code <= 127; ++code) EXPECT_EQ(Int8::encode(Int8::decode(static_cast<int8_t>(code))), code);
  for (int code = -7; code <= 7; ++code) EXPECT_EQ(Int4::encode(Int4::decode(static_cast<int8_t>(code))), code);
  for (int code = -127; code < 127; ++code) {
    const float middle = static_cast<float>(code) + 0.5f;
    EXPECT_EQ(Int8::encode(middle), code % 2 == 0 ? code : code + 1) << middle;
  }
  EXPECT_EQ(Int8::encode(127.5f), 127);
  EXPECT_EQ(Int8::encode(1e30f), 127);
  EXPECT_EQ(Int8::encode(-kInfinity), -127) << "-128 is not used";
  EXPECT_EQ(Int8::encode(-128.0f), -127);
  EXPECT_EQ(Int4::encode(-8.0f), -7);
  EXPECT_EQ(Int8::encode(NAN), 0);
}

TEST(Bits, PowersOfTwo) {
  for (int n = -149; n <= 127; ++n) EXPECT_EQ(exp2_int(n), std::ldexp(1.0f, n));
  EXPECT_TRUE(is_nan(NAN) && is_nan(-NAN) && !is_nan(kInfinity) && !is_nan(0.0f));
  EXPECT_TRUE(is_finite(3.4e38f) && !is_finite(kInfinity) && !is_finite(NAN));
}

}  // namespace
}  // namespace octavo
