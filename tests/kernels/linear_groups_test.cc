// Groups along K: the reference row against the order that kernels/linear.h states, written out, and against the
// dequantized product; the fast rows against the reference row.
#include "kernels/linear_problem.h"

namespace octavo {
namespace {

using testing::add_bias_and_residual;
using testing::expect_same_bits;
using testing::expect_same_in_chunks;
using testing::find_row;
using testing::LinearProblem;
using testing::make_problem;
using testing::outputs;
using testing::reference_row;

constexpr ElementType kF16 = ElementType::kF16, kBf16 = ElementType::kBf16, kE4m3 = ElementType::kE4m3,
                      kE8m0 = ElementType::kE8m0, kE2m1 = ElementType::kE2m1, kInt4 = ElementType::kInt4,
                      kInt8 = ElementType::kInt8;

std::vector<TensorFormat> weights() {
  return {group_format(kInt4, 128, kF16),     group_format(kInt4, 32, kF16, true), group_format(kE2m1, 32, kE8m0),
          group_format(kE2m1, 16, kE4m3),     group_format(kE4m3, 32, kE8m0),      group_format(kInt8, 32, kF16),
          group_format(kInt8, 64, kF16, true)};
}

std::vector<TensorFormat> activations() {
  return {plain_format(kBf16),       row_format(kE4m3),           row_format(kInt8),
          tensor_wide_format(kE4m3), block_format(kE4m3, 1, 128), group_format(kE4m3, 32, kE8m0)};
}

// y[m, n] as linear.h says, every step spelled out.
float expected(const LinearProblem& problem, int64_t m, int64_t n) {
  const MatrixView w = problem.slabs[0].view(), x = problem.input.view();
  const bool w_grouped = w.format.grouped(), x_grouped = x.format.grouped();
  const int64_t w_step = w_grouped ? w.format.block_cols : w.cols, x_step = x_grouped ? x.format.block_cols : x.cols;
  const int64_t step = std::min(w_step, x_step);
  float total = 0.0f;
  for (int64_t begin = 0; begin < w.cols; begin += step) {
    float sum = 0.0f;
    for (int64_t k = begin; k < std::min(w.cols, begin + step); ++k)
      sum = std::fma(x.element_at(m, k), w.element_at(n, k), sum);
    const float wg = w_grouped ? w.scales[w.grid_index(n, begin)] : 1.0f;
    const float xg = x_grouped ? x.scales[x.grid_index(m, begin)] : 1.0f;
    total = std::fma(sum, wg * xg, total);
  }
  const float w_whole = w.format.outer() ? w.outer.value() : 1.0f;
  return total * (w_whole * (x_grouped ? 1.0f : x.scale_at(m, 0)));
}

TEST(LinearGroups, FollowTheStatedOrder) {
  uint64_t seed = 1;
  for (const TensorFormat& weight : weights())
    for (const TensorFormat& activation : activations()) {
      const LinearProblem problem = make_problem(weight, activation, 3, {32}, 300, ++seed);
      const std::vector<float> y = outputs(reference_row(), problem, 2);
      for (int64_t m = 0; m < 3; ++m)
        for (int64_t n = 0; n < 32; ++n)
          ASSERT_EQ(y[static_cast<size_t>(m * 32 + n)], expected(problem, m, n))
              << weight.describe() << " x " << activation.describe() << " at " << m << ", " << n;
    }
}

TEST(LinearGroups, AreTheDequantizedProduct) {
  uint64_t seed = 50;
  for (const TensorFormat& weight : weights())
    for (const TensorFormat& activation : activations()) {
      const LinearProblem problem = make_problem(weight, activation, 2, {32, 33}, 320, ++seed);
      const std::vector<float> y = outputs(reference_row(), problem);
      const std::vector<float> x = dequantize(problem.input.view());
      for (int64_t m = 0; m < 2; ++m)
        for (int64_t n = 0; n < 65; ++n) {
          const MatrixView slab = problem.slabs[n < 32 ? 0 : 1].view();
          double sum = 0, size = 0;
          for (int64_t k = 0; k < 320; ++k) {
            const double product =
                double(x[static_cast<size_t>(m * 320 + k)]) * double(slab.at(n < 32 ? n : n - 32, k));
            sum += product;
            size += std::fabs(product);
          }
          ASSERT_NEAR(y[static_cast<size_t>(m * 65 + n)], sum, 1e-5 * size) << weight.describe();
        }
    }
}

TEST(LinearGroups, EveryFormatFindsARow) {
  for (const TensorFormat& weight : weights())
    for (const TensorFormat& activation : activations()) {
      const LinearKey key{.weight = weight, .activation = activation, .rows = 64, .cols = 256};
      const LinearKernel& row = choose_linear(key, Isa::kAvx512Bf16);
      EXPECT_EQ(row.accepts(key), "");
      const LinearProblem problem = make_problem(weight, activation, 5, {64}, 256, 7);
      if (row.isa <= Isa::kAvx512)
        testing::expect_same_bits(outputs(reference_row(), problem), outputs(row, problem), "");
    }
  const LinearKey odd{
      .weight = group_format(kInt4, 48, kF16), .activation = block_format(kE4m3, 1, 32), .rows = 32, .cols = 96};
  EXPECT_NE(reference_row().accepts(odd), "");
}

// The fast rows. Those of the FMA family give the reference row's bits; the BF16 dot product is close to it.
class LinearGroupRows : public ::testing::TestWithParam<const char*> {
 protected:
  const LinearKernel& row() const { return *find_row(GetParam()); }
  bool takes(const TensorFormat& weight, const TensorFormat& activation) const {
    return row().accepts({.weight = weight, .activation = activation, .rows = 64, .cols = 256}).empty();
  }
  void expect_reference(const LinearProblem& problem, int threads = 1) const {
    const std::vector<float> expected = outputs(reference_row(), problem), actual = outputs(row(), problem, threads);
    const std::string what =
        fmt::format("{}: M={} N={} K={}, {} x {}", row().name, problem.input.rows, problem.key.rows, problem.key.cols,
                    problem.key.weight.describe(), problem.key.activation.describe());
    SCOPED_TRACE(what);
    if (row().isa <= Isa::kAvx512)
      expect_same_bits(expected, actual, what);
    else
      testing::expect_close(problem, expected, actual);
  }
};

// Formats that need no reference row.
std::vector<TensorFormat> fast_weights() {
  return {group_format(kInt4, 128, kF16),
          group_format(kInt4, 32, kF16),
          group_format(kInt4, 128, kF16, true),
          group_format(kInt4, 32, kBf16, true),
          group_format(kInt4, 64, ElementType::kF32),
          row_format(kInt4),
          group_format(kE2m1, 32, kE8m0),
          group_format(kE2m1, 16, kE4m3),
          group_format(kE4m3, 32, kE8m0),
          group_format(kE4m3, 64, ElementType::kF32),
          row_format(kInt8),
          group_format(kInt8, 32, kF16),
          group_format(kInt8, 128, kBf16),
          block_format(kInt8, 128, 128)};
}

std::vector<TensorFormat> fast_activations() {
  return {plain_format(kBf16),       plain_format(ElementType::kF32), row_format(kE4m3),
          tensor_wide_format(kE4m3), group_format(kE4m3, 32, kE8m0),  block_format(kE4m3, 1, 128)};
}

TEST_P(LinearGroupRows, EveryPairOfFormats) {
  if (!isa_available(row().isa)) return;
  uint64_t seed = 100;
  int taken = 0;
  for (const TensorFormat& weight : fast_weights())
    for (const TensorFormat& activation : fast_activations()) {
      if (!takes(weight, activation)) {
        EXPECT_EQ(activation.element, ElementType::kF32) << row().accepts({weight, activation, 64, 256});
        continue;
      }
      ++taken;
      for (const int64_t m : {1, 2, 5, 37})
        for (const int64_t k : {256, 307}) expect_reference(make_problem(weight, activation, m, {96}, k, ++seed), 2);
    }
  EXPECT_GE(taken, 50);
}

TEST_P(LinearGroupRows, EveryNumberOfRows) {
  if (!isa_available(row().isa)) return;
  for (const TensorFormat& weight : fast_weights())
    for (int64_t m = 1; m <= 40; ++m)
      expect_reference(make_problem(weight, plain_format(kBf16), m, {96}, 336, static_cast<uint64_t>(m)), 2);
  for (int64_t m = 1; m <= 40; ++m)
    expect_reference(make_problem(group_format(kE4m3, 32, kE8m0), group_format(kE4m3, 32, kE8m0), m, {96}, 336,
                                  static_cast<uint64_t>(m)));
}

TEST_P(LinearGroupRows, TailsOfRowsAndColumns) {
  if (!isa_available(row().isa)) return;
  uint64_t seed = 500;
  for (const int64_t n : {1, 15, 33, 130})
    for (const int64_t k : {1, 2, 3, 7, 8, 9, 15, 17, 31, 47, 129, 515})
      for (const int64_t m : {1, 3, 9, 26})
        for (const TensorFormat& weight :
             {group_format(kInt4, 32, kF16), group_format(kInt4, 128, kF16, true), group_format(kE2m1, 16, kE4m3),
              row_format(kInt4), row_format(kInt8), group_format(kInt8, 32, kF16)})
          expect_reference(make_problem(weight, plain_format(kBf16), m, {n}, k, ++seed));
}

// K = 1, one scale for each row: output [m, n] is x[m] x (value n of the format).
TEST_P(LinearGroupRows, EveryCodeAndZeroPoint) {
  if (!isa_available(row().isa)) return;
  for (const TensorFormat& weight :
       {group_format(kInt4, 32, kF16), group_format(kE2m1, 32, kE8m0), group_format(kInt4, 32, kF16, true)})
    for (const int64_t m : {1, 40})
      for (const int64_t column : {0, 1, 2, 3, 4, 5, 6, 7, 30, 31}) {
        const int zeros = weight.zero_points ? 17 : 1;
        LinearProblem problem = make_problem(weight, plain_format(kBf16), m, {16 * zeros}, 32, 3);
        Matrix& w = problem.slabs[0];
        std::memset(problem.input.codes.data(), 0, problem.input.codes.size());
        for (int64_t r = 0; r < m; ++r)
          store_element(kBf16, problem.input.codes.data(), static_cast<size_t>(r * 32 + column), 1.0f);
        for (int n = 0; n < 16 * zeros; ++n) {
          w.scales[static_cast<size_t>(n)] = 1.0f;
          if (weight.zero_points) w.zeros[static_cast<size_t>(n)] = static_cast<float>(n / 16 - 8);
          std::byte& byte = w.codes.data()[n * 16 + column / 2];
          const auto code = static_cast<std::byte>(n % 16);
          byte = column % 2 == 0 ? (byte & std::byte{0xF0}) | code : (byte & std::byte{0x0F}) | code << 4;
        }
        const std::vector<float> expected = outputs(reference_row(), problem), actual = outputs(row(), problem);
        for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(expected[i], actual[i]) << i << " column " << column;
      }
}

// K = 1 likewise: every INT8 code in every byte of a word.
TEST_P(LinearGroupRows, EveryInt8Code) {
  if (!isa_available(row().isa)) return;
  for (const TensorFormat& weight : {row_format(kInt8), group_format(kInt8, 32, kF16)})
    for (const int64_t m : {1, 40})
      for (const int64_t column : {0, 1, 2, 3, 4, 31}) {
        LinearProblem problem = make_problem(weight, plain_format(kBf16), m, {256}, 32, 3);
        Matrix& w = problem.slabs[0];
        std::memset(problem.input.codes.data(), 0, problem.input.codes.size());
        for (int64_t r = 0; r < m; ++r)
          store_element(kBf16, problem.input.codes.data(), static_cast<size_t>(r * 32 + column), 1.0f);
        for (int n = 0; n < 256; ++n) {
          w.scales[static_cast<size_t>(n)] = 0.25f;
          w.codes.data()[n * 32 + column] = static_cast<std::byte>(n);
        }
        const std::vector<float> y = outputs(row(), problem);
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_EQ(y[i], 0.25f * static_cast<float>(static_cast<int8_t>(i % 256))) << i << " column " << column;
      }
}

TEST_P(LinearGroupRows, EveryNarrowScale) {
  if (!isa_available(row().isa)) return;
  for (const int64_t m : {1, 30}) {
    // E8M0: all 254 codes between 2^-127 and 2^126, and E4M3: all positive ones, one for each row.
    LinearProblem problem = make_problem(group_format(kE2m1, 32, kE8m0), plain_format(kBf16), m, {254}, 32, 5);
    for (int n = 0; n < 254; ++n) problem.slabs[0].scales[static_cast<size_t>(n)] = std::ldexp(1.0f, n - 127);
    for (int64_t i = 0; i < m * 32; ++i)  // one product per row: no sum leaves FP32's range
      store_element(kBf16, problem.input.codes.data(), static_cast<size_t>(i), i % 32 == 3 ? 0.25f : 0.0f);
    expect_reference(problem);
    problem = make_problem(group_format(kE2m1, 16, kE4m3), plain_format(kBf16), m, {126}, 16, 6);
    for (int n = 0; n < 126; ++n) {
      const auto code = static_cast<std::byte>(n + 1);
      problem.slabs[0].scales[static_cast<size_t>(n)] = load_element(kE4m3, &code, 0);
    }
    expect_reference(problem);
  }
}

TEST_P(LinearGroupRows, NanScalesAndCodes) {
  if (!isa_available(row().isa)) return;
  for (const int64_t m : {1, 30})
    for (const TensorFormat& weight : fast_weights()) {
      if (!weight.grouped()) continue;
      LinearProblem problem = make_problem(weight, plain_format(kBf16), m, {70}, 256, 12);
      Matrix& w = problem.slabs[0];
      const int64_t group = w.format.scale_cols(256) * (w.format.block_rows == 1 ? 3 : 0) + 1;
      w.scales[static_cast<size_t>(group)] = bits_float(0x7FC00000u);
      if (weight.element == kE4m3) w.codes.data()[256 * 66 + 255] = std::byte{0xFF};
      store_element(kBf16, problem.input.codes.data(), static_cast<size_t>(256 * (m - 1) + 17),
                    bits_float(0x7FC00000u));
      const std::vector<float> expected = outputs(reference_row(), problem), actual = outputs(row(), problem, 2);
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(is_nan(expected[i]), is_nan(actual[i])) << i;
      if (row().isa <= Isa::kAvx512) expect_same_bits(expected, actual, weight.describe());
    }
}

TEST_P(LinearGroupRows, BiasResidualAndSlabs) {
  if (!isa_available(row().isa)) return;
  for (const int64_t m : {1, 7, 33})
    for (const TensorFormat& weight : {group_format(kE2m1, 16, kE4m3), group_format(kInt4, 128, kF16, true)}) {
      LinearProblem problem = make_problem(weight, plain_format(kBf16), m, {96, 32, 75}, 400, 21);
      add_bias_and_residual(problem, 22);
      expect_reference(problem, 3);
    }
}

TEST_P(LinearGroupRows, AnyChunkingAndThreadCountGivesTheSameBits) {
  if (!isa_available(row().isa)) return;
  for (const TensorFormat& weight : fast_weights())
    for (const TensorFormat& activation : {plain_format(kBf16), group_format(kE4m3, 32, kE8m0)})
      expect_same_in_chunks(row(), make_problem(weight, activation, 100, {96}, 701, 15));
}

TEST_P(LinearGroupRows, APartOfThePanelsIsThatPartOfTheOutputs) {
  if (!isa_available(row().isa)) return;
  const std::vector<int32_t> panels = {0, 2, 3, 6};
  for (const TensorFormat& weight : {plain_format(kBf16), row_format(kInt8), group_format(kInt4, 32, kF16)})
    for (const int64_t m : {1, 4, 40}) {
      const LinearProblem problem = make_problem(weight, plain_format(kBf16), m, {205}, 300, 31);
      const std::vector<float> whole = outputs(row(), problem);
      const PackedLinear packed = testing::pack(row(), problem);
      ThreadPool pool(3);
      Scratch scratch;
      ActivationBuffer buffer;
      std::vector<float> y(static_cast<size_t>(m * 205), -1.0f);
      row().run({.weight = &packed,
                 .input = testing::to_activation(problem.input, 0, m, buffer),
                 .output = y.data(),
                 .output_stride = 205,
                 .panels = panels},
                pool, scratch);
      for (int64_t i = 0; i < m * 205; ++i) {
        const bool wanted = std::binary_search(panels.begin(), panels.end(), static_cast<int32_t>(i % 205 / 32));
        ASSERT_EQ(y[static_cast<size_t>(i)], wanted ? whole[static_cast<size_t>(i)] : -1.0f) << i;
      }
    }
}

TEST_P(LinearGroupRows, RefusesWhatItCannotDo) {
  EXPECT_FALSE(takes(group_format(kInt4, 20, kF16), plain_format(kBf16)));
  EXPECT_FALSE(takes(group_format(kInt8, 32, kF16, true), plain_format(kBf16)));
  EXPECT_FALSE(takes(block_format(kE2m1, 16, 32), plain_format(kBf16)));
  EXPECT_FALSE(takes(block_format(kE4m3, 128, 128, kE4m3), plain_format(kBf16)));
}

std::string isa_of(const ::testing::TestParamInfo<const char*>& row) {
  const std::string name = row.param;
  return name.substr(0, name.find('/'));
}
INSTANTIATE_TEST_SUITE_P(Rows, LinearGroupRows, ::testing::Values("avx2/fma", "avx512/fma", "avx512_bf16/dot"), isa_of);

}  // namespace
}  // namespace octavo
