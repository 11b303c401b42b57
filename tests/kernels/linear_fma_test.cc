// The FMA rows (avx2/fma, avx512/fma) agree with the reference row bit for bit.
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
using testing::pack;
using testing::reference_row;

constexpr ElementType kF32 = ElementType::kF32, kBf16 = ElementType::kBf16, kE4m3 = ElementType::kE4m3;

std::vector<TensorFormat> weight_formats() {
  return {plain_format(kF32),        plain_format(kBf16),           row_format(kE4m3),
          tensor_wide_format(kE4m3), block_format(kE4m3, 128, 128), block_format(kE4m3, 128, 128, ElementType::kE8m0)};
}

std::vector<TensorFormat> activation_formats() {
  return {plain_format(kF32), plain_format(kBf16), row_format(kE4m3), tensor_wide_format(kE4m3),
          block_format(kE4m3, 1, 128)};
}

std::string text(const LinearProblem& problem) {
  return fmt::format("M={} N={} K={}, {} x {}", problem.input.rows, problem.key.rows, problem.key.cols,
                     problem.key.weight.describe(), problem.key.activation.describe());
}

class LinearFma : public ::testing::TestWithParam<const char*> {
 protected:
  const LinearKernel& row() const {
    const LinearKernel* row = find_row(GetParam());
    EXPECT_NE(row, nullptr);
    return *row;
  }
  // False on a machine without the instructions, where the row must not be chosen either.
  bool available() const {
    if (isa_available(row().isa)) return true;
    const LinearKey key{.weight = row_format(kE4m3), .activation = row_format(kE4m3), .rows = 32, .cols = 32};
    EXPECT_NE(&choose_linear(key, Isa::kAvx512Bf16), &row());
    return false;
  }
  void expect_reference(const LinearProblem& problem, int threads = 1) const {
    expect_same_bits(outputs(reference_row(), problem), outputs(row(), problem, threads),
                     fmt::format("{}: {}, {} threads", row().name, text(problem), threads));
  }
};

TEST_P(LinearFma, EveryProductOfTwoE4m3Codes) {
  if (!available()) return;
  // K = 1: output [m, n] is the product of code m and code n; NaN codes included.
  LinearProblem problem = make_problem(tensor_wide_format(kE4m3), tensor_wide_format(kE4m3), 256, {256}, 1, 1);
  for (int code = 0; code < 256; ++code)
    problem.slabs[0].codes.data()[code] = problem.input.codes.data()[code] = std::byte(code);
  expect_reference(problem);
  // The same with one row at a time, which takes another path.
  ThreadPool pool(1);
  const PackedLinear packed = pack(row(), problem);
  const std::vector<float> whole = outputs(packed, problem, pool, 0, 256);
  for (int m = 0; m < 256; ++m) {
    const std::vector<float> one = outputs(packed, problem, pool, m, 1);
    expect_same_bits({whole.begin() + m * 256, whole.begin() + (m + 1) * 256}, one, fmt::format("code {}", m));
  }
}

TEST_P(LinearFma, EveryInt8CodeTimesAFloat) {
  if (!available()) return;
  for (const int64_t m : {1, 2, 40}) {
    // K = 5: every code in every byte of a word, and a tail.
    LinearProblem problem = make_problem(row_format(ElementType::kInt8), plain_format(kBf16), m, {256}, 5, 2);
    for (int i = 0; i < 256 * 5; ++i) problem.slabs[0].codes.data()[i] = std::byte(i / 5 + i % 5);
    expect_reference(problem);
  }
}

TEST_P(LinearFma, EveryPairOfFormats) {
  if (!available()) return;
  uint64_t seed = 100;
  for (const TensorFormat& weight : weight_formats())
    for (const TensorFormat& activation : activation_formats())
      for (const int64_t m : {1, 5, 37}) expect_reference(make_problem(weight, activation, m, {96}, 300, ++seed), 2);
}

TEST_P(LinearFma, EveryNumberOfRows) {
  if (!available()) return;
  for (int64_t m = 1; m <= 40; ++m) {
    expect_reference(make_problem(row_format(kE4m3), row_format(kE4m3), m, {128}, 576, static_cast<uint64_t>(m)), 2);
    expect_reference(make_problem(block_format(kE4m3, 128, 128), block_format(kE4m3, 1, 128), m, {160}, 320,
                                  static_cast<uint64_t>(m)),
                     2);
    expect_reference(make_problem(plain_format(kBf16), plain_format(kBf16), m, {96}, 530, static_cast<uint64_t>(m)), 2);
    expect_reference(make_problem(plain_format(kF32), plain_format(kF32), m, {96}, 270, static_cast<uint64_t>(m)), 2);
  }
}

TEST_P(LinearFma, TailsOfRowsAndColumns) {
  if (!available()) return;
  uint64_t seed = 500;
  for (const int64_t n : {1, 15, 31, 33, 47, 97, 130})
    for (const int64_t k : {1, 2, 3, 15, 17, 63, 127, 129, 255, 257, 511, 515})
      for (const int64_t m : {1, 2, 3, 4, 9, 14}) {
        expect_reference(make_problem(row_format(kE4m3), row_format(kE4m3), m, {n}, k, ++seed));
        expect_reference(make_problem(block_format(kE4m3, 128, 128), block_format(kE4m3, 1, 128), m, {n}, k, ++seed));
        expect_reference(make_problem(plain_format(kF32), plain_format(kBf16), m, {n}, k, ++seed));
        expect_reference(make_problem(plain_format(kBf16), plain_format(kF32), m, {n}, k, ++seed));
      }
}

TEST_P(LinearFma, BiasAndResidual) {
  if (!available()) return;
  for (const int64_t m : {1, 4, 12, 33})
    for (const int64_t n : {64, 77}) {
      LinearProblem problem = make_problem(row_format(kE4m3), row_format(kE4m3), m, {n}, 200, 7);
      add_bias_and_residual(problem, 8);
      expect_reference(problem, 2);
      problem = make_problem(block_format(kE4m3, 128, 128), row_format(kE4m3), m, {n}, 700, 9);
      add_bias_and_residual(problem, 10);
      expect_reference(problem, 2);
    }
}

TEST_P(LinearFma, SlabsKeepTheirOwnScales) {
  if (!available()) return;
  for (const int64_t m : {1, 2, 13, 40})
    for (const TensorFormat& weight : {tensor_wide_format(kE4m3), row_format(kE4m3), block_format(kE4m3, 128, 128)})
      // The second and third slab start inside what would be a 128-row block of the whole.
      expect_reference(make_problem(weight, row_format(kE4m3), m, {576, 192, 200}, 390, 11), 3);
}

TEST_P(LinearFma, NanCodesAndScales) {
  if (!available()) return;
  for (const int64_t m : {1, 3, 20})
    for (const TensorFormat& weight : {row_format(kE4m3), block_format(kE4m3, 128, 128)}) {
      LinearProblem problem = make_problem(weight, row_format(kE4m3), m, {200}, 300, 12);
      problem.slabs[0].codes.data()[70 * 300 + 299] = std::byte{0x7F};
      problem.slabs[0].codes.data()[71 * 300] = std::byte{0xFF};
      problem.input.codes.data()[(m - 1) * 300 + 17] = std::byte{0xFF};
      problem.input.scales[0] = bits_float(0x7FC00000u);
      problem.slabs[0].scales[1] = bits_float(0x7FC00000u);
      problem.slabs[0].scales[2] = INFINITY;
      expect_reference(problem, 2);
    }
}

TEST_P(LinearFma, SubnormalCodesAndZeros) {
  if (!available()) return;
  for (const int64_t m : {1, 20}) {
    LinearProblem problem = make_problem(row_format(kE4m3), row_format(kE4m3), m, {64}, 128, 13);
    for (size_t i = 0; i < problem.slabs[0].codes.size(); ++i)  // 0..7 with either sign
      problem.slabs[0].codes.data()[i] &= std::byte{0x87};
    for (size_t i = 0; i < problem.input.codes.size(); ++i) problem.input.codes.data()[i] &= std::byte{0x87};
    expect_reference(problem);
    for (size_t i = 0; i < problem.slabs[0].codes.size(); ++i) problem.slabs[0].codes.data()[i] &= std::byte{0x80};
    expect_reference(problem);  // zeros of both signs
  }
}

TEST_P(LinearFma, SubnormalSumsSurvive) {
  if (!available()) return;
  for (const int64_t m : {1, 20})
    for (const int64_t k : {63, 64}) {
      LinearProblem problem = make_problem(plain_format(kF32), plain_format(kF32), m, {40}, k, 14);
      for (Matrix* matrix : {&problem.slabs[0], &problem.input})
        for (size_t i = 0; i < matrix->codes.size() / 4; ++i)
          reinterpret_cast<float*>(matrix->codes.data())[i] *= 0x1p-72f;
      expect_reference(problem);
    }
}

TEST_P(LinearFma, AnyChunkingAndThreadCountGivesTheSameBits) {
  if (!available()) return;
  for (const TensorFormat& weight : {row_format(kE4m3), block_format(kE4m3, 128, 128)})
    expect_same_in_chunks(row(), make_problem(weight, block_format(kE4m3, 1, 128), 300, {288}, 700, 15));
}

TEST_P(LinearFma, RefusesWhatItCannotDo) {
  const auto refuses = [&](const TensorFormat& weight, const TensorFormat& activation) {
    return !row().accepts({.weight = weight, .activation = activation, .rows = 64, .cols = 64}).empty();
  };
  EXPECT_TRUE(refuses(row_format(ElementType::kInt8), row_format(ElementType::kInt8)));
  EXPECT_TRUE(refuses(row_format(kE4m3), row_format(ElementType::kInt8)));
  EXPECT_TRUE(refuses(block_format(kE4m3, 16, 128), row_format(kE4m3)));
  EXPECT_TRUE(refuses(block_format(kE4m3, 128, 127), row_format(kE4m3)));
  EXPECT_TRUE(refuses(block_format(kE4m3, 128, 48), block_format(kE4m3, 1, 128)));
  for (const TensorFormat& weight : weight_formats())
    for (const TensorFormat& activation : activation_formats()) EXPECT_FALSE(refuses(weight, activation));
}

std::string isa_of(const ::testing::TestParamInfo<const char*>& row) {
  const std::string name = row.param;
  return name.substr(0, name.find('/'));
}
INSTANTIATE_TEST_SUITE_P(Rows, LinearFma, ::testing::Values("avx2/fma", "avx512/fma"), isa_of);

}  // namespace
}  // namespace octavo
