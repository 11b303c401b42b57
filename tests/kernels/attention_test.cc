// Every row of attention.inc against the reference: the FMA family bit for bit, avx512_bf16 within its bound.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/attention_case.h"

namespace octavo {
namespace {

using test::AttentionCase;
using test::kKvTypes;

bool is_bf16_row(const AttentionKernel& row) {
  return row.isa == Isa::kAvx512Bf16;
}

// The rows beside the reference that this machine can run; those that it cannot run must not be offered.
std::vector<const AttentionKernel*> rows_here(bool with_bf16) {
  std::vector<const AttentionKernel*> rows;
  const AttentionKey key{ElementType::kE4m3, ElementType::kE4m3, 64, 3};
  for (const AttentionKernel* row : attention_kernels()) {
    if (!isa_available(row->isa)) {
      EXPECT_NE(&choose_attention(key, row->isa), row) << row->name;
      EXPECT_NE(&choose_attention(key, Isa::kAvx512Bf16), row) << row->name;
    } else if (row->isa != Isa::kReference && (with_bf16 || !is_bf16_row(*row))) {
      rows.push_back(row);
    }
  }
  return rows;
}

const AttentionKernel& reference() {
  return *attention_kernels().front();
}

// The rows of the FMA family.
void expect_equal_to_reference(const AttentionCase& c) {
  const std::vector<float> want = c.run(reference(), 1);
  for (const AttentionKernel* row : rows_here(false)) {
    const std::vector<float> got = c.run(*row, 1);
    ASSERT_TRUE(test::same_bits(want, got))
        << row->name << ": " << c.describe() << ": " << test::first_difference(want, got);
  }
}

TEST(Attention, EveryPairOfElementTypes) {
  for (const ElementType k : kKvTypes)
    for (const ElementType v : kKvTypes) {
      AttentionCase c{.k = k, .v = v};
      c.sequences = {{300, 1}, {290, 33}, {33, 33}, {1, 1}};
      expect_equal_to_reference(c);
    }
}

TEST(Attention, EveryGroupSize) {
  for (int group = 1; group <= 16; ++group)
    for (const int head_dim : {32, 64, 128}) {
      AttentionCase c{.v = ElementType::kInt8, .head_dim = head_dim, .num_kv_heads = 1 + group % 2, .group = group};
      c.sequences = {{270, 1}, {65, 17}};
      expect_equal_to_reference(c);
    }
}

TEST(Attention, EveryHeadDimension) {
  for (const int head_dim : {2, 4, 6, 10, 16, 18, 30, 34, 48, 62, 66, 80, 96, 112, 126, 130, 160, 192, 256, 288})
    for (const int group : {1, 3}) {
      AttentionCase c{.k = ElementType::kInt8, .v = ElementType::kE5m2, .head_dim = head_dim, .group = group};
      c.sequences = {{290, 1}, {40, 13}};
      expect_equal_to_reference(c);
    }
}

TEST(Attention, SlidingWindows) {
  for (const int64_t window : {1, 2, 5, 31, 32, 33, 100, 255, 256, 257, 300, 511, 512})
    for (const int group : {1, 3}) {
      AttentionCase c{.k = ElementType::kBf16, .head_dim = 16, .num_kv_heads = 1, .group = group, .window = window};
      c.sequences = {{600, 1}, {530, 300}};
      expect_equal_to_reference(c);
    }
}

TEST(Attention, EveryOutputFormat) {
  AttentionCase c;
  c.sequences = {{70, 1}, {260, 20}};
  ThreadPool pool(2);
  for (const AttentionKernel* row : rows_here(false))
    for (const TensorFormat& format :
         {plain_format(ElementType::kBf16), row_format(ElementType::kE4m3), row_format(ElementType::kInt8),
          tensor_wide_format(ElementType::kE4m3), block_format(ElementType::kE4m3, 1, 128)}) {
      ActivationBuffer a, b;
      const Activation want = c.run_into(reference(), pool, a, format), got = c.run_into(*row, pool, b, format);
      for (int64_t r = 0; r < want.rows; ++r) {
        for (int64_t i = 0; i < want.code_stride; ++i)
          ASSERT_EQ(want.row(r)[i], got.row(r)[i]) << row->name << " " << format.describe() << " row " << r;
        for (int64_t i = 0; i < want.cols; ++i) ASSERT_EQ(want.scale(r, i), got.scale(r, i));
      }
    }
}

// The same prompt in chunks, on several threads, beside another sequence: the same bits.
TEST(Attention, ChunksThreadsAndBatchMatesChangeNoBit) {
  for (const AttentionKernel* row : rows_here(true))
    for (const ElementType type : {ElementType::kE4m3, ElementType::kBf16}) {
      AttentionCase whole{.k = type, .v = type};
      whole.sequences = {{300, 300}};
      const std::vector<float> want = whole.run(*row, 1);
      const int64_t width = whole.width();
      for (const int64_t chunk : {1, 7, 64, 300})
        for (const int threads : {1, 2, 3})
          for (int64_t begin = 0; begin < 300; begin += chunk) {
            const int64_t end = std::min<int64_t>(300, begin + chunk);
            if (chunk <= 7 && begin % (threads == 1 ? 21 : 154) != 0) continue;  // a sample is enough
            AttentionCase part = whole;
            part.sequences = {{end, end - begin}, {77, 5}};
            const std::vector<float> got = part.run(*row, threads);
            const std::vector<float> want_part(want.begin() + begin * width, want.begin() + end * width);
            const std::vector<float> got_part(got.begin(), got.begin() + (end - begin) * width);
            ASSERT_TRUE(test::same_bits(want_part, got_part)) << row->name << " chunk " << chunk << " at " << begin;
          }
    }
}

TEST(Attention, LongDecodeIsSplitOverThreadsWithTheSameBits) {
  for (const AttentionKernel* row : rows_here(true)) {
    AttentionCase c{.num_kv_heads = 1};
    c.sequences = {{5000, 1}};
    const std::vector<float> want = c.run(*row, 1);
    for (const int threads : {2, 3, 5}) ASSERT_TRUE(test::same_bits(want, c.run(*row, threads))) << row->name;
  }
  AttentionCase c{.num_kv_heads = 1};
  c.sequences = {{5000, 1}};
  expect_equal_to_reference(c);
}

// Every code of the 8-bit types but NaN and infinity as keys and values; with and without zeros and subnormals.
TEST(Attention, EveryCode) {
  for (const ElementType type : {ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8})
    for (const int least_code : {0, 8}) {
      AttentionCase c{.k = type, .v = type, .random_codes = true, .least_code = least_code};
      c.sequences = {{300, 1}, {280, 30}};
      expect_equal_to_reference(c);
    }
}

// With scales given by the checkpoint a NaN becomes a NaN code, and stays one.
TEST(Attention, GivenScalesAndNanCodes) {
  for (const ElementType type : {ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8}) {
    AttentionCase c{.k = type, .v = type, .given_scales = {0.01f, 0.02f}};
    c.sequences = {{290, 290}, {290, 1}};
    c.edit_kv = [](int64_t token, float* k, float* v, int) {
      if (token == 100) v[5] = std::numeric_limits<float>::quiet_NaN();
      if (token == 200) k[3] = std::numeric_limits<float>::quiet_NaN();
    };
    expect_equal_to_reference(c);
    const float at_v = c.run(*rows_here(false).back(), 1)[static_cast<size_t>(150 * c.width() + 5)];
    EXPECT_TRUE(std::isnan(at_v)) << element_name(type);
  }
}

TEST(Attention, FlushToZeroFlagsOfTheCallerChangeNothing) {
  AttentionCase c{.k = ElementType::kF32, .v = ElementType::kF32};
  c.sequences = {{290, 40}, {33, 1}};
  c.edit_kv = [](int64_t, float*, float* v, int head_dim) {
    for (int d = 0; d < head_dim; ++d) v[d] *= 1e-38f;
  };
  for (const AttentionKernel* row : rows_here(false)) {
    const std::vector<float> want = c.run(*row, 1);
    AttentionCase flushed = c;
    flushed.flush_to_zero = true;
    ASSERT_TRUE(test::same_bits(want, flushed.run(*row, 1))) << row->name;
  }
}

// Zero and NaN tokens, subnormal and huge values. A poisoned key reaches the tokens that see it, and only those.
TEST(Attention, EdgeValues) {
  for (const AttentionKernel* row : rows_here(true))
    for (const ElementType type : kKvTypes) {
      if (is_bf16_row(*row) && type == ElementType::kF32) continue;
      AttentionCase c{.k = type, .v = type};
      c.sequences = {{290, 290}, {290, 1}};
      c.edit_kv = [](int64_t token, float* k, float* v, int head_dim) {
        for (int d = 0; d < head_dim; ++d) {
          if (token % 7 == 1) k[d] = v[d] = 0.0f;
          if (token % 7 == 3) k[d] *= 1e-38f, v[d] *= 1e-39f;
          if (token % 7 == 5) v[d] *= 1e30f;
        }
        if (token == 200) k[3] = std::numeric_limits<float>::quiet_NaN();
        if (token == 250) v[5] = std::numeric_limits<float>::infinity();
      };
      if (row == rows_here(true).front()) expect_equal_to_reference(c);
      const std::vector<float> out = c.run(*row, 1);
      for (int64_t r = 0; r < 290; ++r)
        for (int64_t i = 0; i < c.width(); ++i)
          if (r < 200) {
            ASSERT_TRUE(std::isfinite(out[static_cast<size_t>(r * c.width() + i)])) << row->name << " row " << r;
          } else {
            ASSERT_TRUE(std::isnan(out[static_cast<size_t>(r * c.width() + i)])) << row->name << " row " << r;
          }
    }
}

TEST(Attention, ScoresFarApartAndEqual) {
  for (const float deviation : {0.0f, 1e-3f, 60.0f, 1e10f}) {
    AttentionCase c{.k = ElementType::kF32, .v = ElementType::kF32};
    c.q_deviation = deviation;
    c.sequences = {{600, 1}, {300, 64}};
    expect_equal_to_reference(c);
  }
}

// Equal keys and values at every position: the output is that value however long the context is, with no trend.
TEST(Attention, LongSumsOfEqualValuesDoNotDrift) {
  const auto value_of = [](int d) { return std::ldexp(d % 2 == 0 ? 1.0f : -1.0f, d % 5); };  // exact in E4M3
  for (const AttentionKernel* row : rows_here(true))
    for (const int64_t length : {64, 1024, 8192, 32768}) {
      AttentionCase c{.head_dim = 16, .num_kv_heads = 1, .group = 1};
      c.sequences = {{length, 1}};
      c.edit_kv = [&](int64_t, float* k, float* v, int head_dim) {
        for (int d = 0; d < head_dim; ++d) k[d] = 1.0f, v[d] = value_of(d);
      };
      const std::vector<float> out = c.run(*row, 1);
      const float bound = is_bf16_row(*row) ? 4e-3f : 2e-6f;
      for (int d = 0; d < 16; ++d)
        EXPECT_NEAR(out[static_cast<size_t>(d)] / value_of(d), 1.0f, bound) << row->name << " " << length;
      if (length <= 8192 && row == rows_here(true).front()) expect_equal_to_reference(c);
    }
}

// A large constant channel in K (a bias without QK norm): with a scale per token and head the small part survives.
TEST(Attention, ALargeKeyBiasDoesNotDrownTheKeys) {
  for (const AttentionKernel* row : rows_here(true)) {
    const auto run = [&](ElementType type) {
      AttentionCase c{.k = type, .v = ElementType::kBf16, .head_dim = 64, .num_kv_heads = 2, .group = 2};
      c.sequences = {{256, 256}};
      c.edit_kv = [](int64_t, float* k, float*, int head_dim) {
        for (int d = 0; d < head_dim; ++d) k[d] *= 4.0f;
        k[3] += 900.0f;
      };
      c.edit_q = [](float* q, int head_dim) {
        for (int d = 0; d < head_dim; ++d) q[d] *= 0.5f;
        q[3] *= 1e-3f;
      };
      return c.run(*row, 1);
    };
    const std::vector<float> wide = run(ElementType::kBf16), narrow = run(ElementType::kE4m3);
    double error = 0, norm = 0;
    for (size_t i = 0; i < wide.size(); ++i) {
      error += std::pow(wide[i] - narrow[i], 2);
      norm += std::pow(wide[i], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 0.35) << row->name;  // at scale 1, saturated at 448, it is above 1
  }
}

TEST(Attention, Bf16RowStaysWithinItsBound) {
  for (const AttentionKernel* row : rows_here(true)) {
    if (!is_bf16_row(*row)) continue;
    for (const ElementType type : {ElementType::kBf16, ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8})
      for (const int64_t window : {0, 37})
        for (const int head_dim : {6, 80, 288}) {
          AttentionCase c{.k = type, .v = type, .head_dim = head_dim, .group = 3, .window = window};
          c.sequences = {{300, 1}, {290, 13}, {33, 33}, {1, 1}};
          const std::vector<float> want = c.run(reference(), 1), got = c.run(*row, 1);
          double error = 0, norm = 0;
          for (size_t i = 0; i < want.size(); ++i) {
            error += std::pow(want[i] - got[i], 2);
            norm += std::pow(want[i], 2);
          }
          EXPECT_LT(std::sqrt(error / norm), 6e-3) << c.describe();  // q and p have 8 significant bits
        }
  }
}

TEST(Attention, RefusalsAreNamed) {
  std::vector<std::string> why_not;
  const AttentionKernel& row =
      choose_attention({ElementType::kF32, ElementType::kE4m3, 64, 3}, Isa::kAvx512Bf16, &why_not);
  EXPECT_FALSE(is_bf16_row(row));
  if (isa_available(Isa::kAvx512Bf16)) {
    ASSERT_EQ(why_not.size(), 1u);
    EXPECT_NE(why_not[0].find("float32"), std::string::npos) << why_not[0];
  }
  EXPECT_EQ(&choose_attention({ElementType::kE4m3, ElementType::kE4m3, 64, 3}, Isa::kReference), &reference());
}

}  // namespace
}  // namespace octavo
