// The INT8 rows (avx2/int8, avx512/vnni) agree with the reference row bit for bit: their sums are exact.
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

constexpr ElementType kInt8 = ElementType::kInt8;

class LinearInt8 : public ::testing::TestWithParam<const char*> {
 protected:
  const LinearKernel& row() const {
    const LinearKernel* row = find_row(GetParam());
    EXPECT_NE(row, nullptr);
    return *row;
  }
  bool available() const {
    if (isa_available(row().isa)) return true;
    const LinearKey key{.weight = row_format(kInt8), .activation = row_format(kInt8), .rows = 32, .cols = 32};
    EXPECT_NE(&choose_linear(key, Isa::kAvx512Bf16), &row());
    return false;
  }
  void expect_reference(const LinearProblem& problem, int threads = 1) const {
    expect_same_bits(outputs(reference_row(), problem), outputs(row(), problem, threads),
                     fmt::format("{}: M={} N={} K={}, {} threads", row().name, problem.input.rows, problem.key.rows,
                                 problem.key.cols, threads));
  }
};

TEST_P(LinearInt8, EveryProductOfTwoCodes) {
  if (!available()) return;
  LinearProblem problem = make_problem(tensor_wide_format(kInt8), tensor_wide_format(kInt8), 256, {256}, 1, 1);
  for (int code = 0; code < 256; ++code)
    problem.slabs[0].codes.data()[code] = problem.input.codes.data()[code] = std::byte(code);
  expect_reference(problem);
}

TEST_P(LinearInt8, EveryNumberOfRows) {
  if (!available()) return;
  for (int64_t m = 1; m <= 40; ++m)
    expect_reference(make_problem(row_format(kInt8), row_format(kInt8), m, {160}, 580, static_cast<uint64_t>(m)), 2);
}

TEST_P(LinearInt8, TailsOfRowsAndColumns) {
  if (!available()) return;
  uint64_t seed = 500;
  for (const int64_t n : {1, 31, 33, 97, 130})
    for (const int64_t k : {1, 2, 3, 5, 15, 17, 63, 127, 129, 1023})
      for (const int64_t m : {1, 2, 3, 5, 9, 14}) {
        expect_reference(make_problem(row_format(kInt8), tensor_wide_format(kInt8), m, {n}, k, ++seed));
        expect_reference(make_problem(tensor_wide_format(kInt8), row_format(kInt8), m, {n}, k, ++seed));
      }
}

TEST_P(LinearInt8, LargestSumsAreExact) {
  if (!available()) return;
  for (const int64_t m : {1, 4, 20}) {
    LinearProblem problem = make_problem(row_format(kInt8), row_format(kInt8), m, {64}, 20000, 3);
    std::memset(problem.slabs[0].codes.data(), 0x80, problem.slabs[0].codes.size());  // -128, which no encoder writes
    std::memset(problem.input.codes.data(), 0x80, problem.input.codes.size());
    expect_reference(problem);
    std::memset(problem.input.codes.data(), 0x7F, problem.input.codes.size());
    expect_reference(problem);
  }
}

TEST_P(LinearInt8, BiasResidualAndSlabs) {
  if (!available()) return;
  for (const int64_t m : {1, 7, 33})
    for (const TensorFormat& weight : {row_format(kInt8), tensor_wide_format(kInt8)}) {
      LinearProblem problem = make_problem(weight, row_format(kInt8), m, {576, 192, 200}, 250, 5);
      add_bias_and_residual(problem, 6);
      expect_reference(problem, 3);
    }
}

TEST_P(LinearInt8, NanScales) {
  if (!available()) return;
  LinearProblem problem = make_problem(row_format(kInt8), row_format(kInt8), 15, {64}, 64, 7);
  problem.input.scales[3] = problem.slabs[0].scales[5] = bits_float(0x7FC00000u);
  expect_reference(problem);
}

TEST_P(LinearInt8, AnyChunkingAndThreadCountGivesTheSameBits) {
  if (!available()) return;
  expect_same_in_chunks(row(), make_problem(row_format(kInt8), row_format(kInt8), 300, {288}, 700, 15));
}

TEST_P(LinearInt8, RefusesWhatItCannotDo) {
  const auto refuses = [&](const TensorFormat& weight, const TensorFormat& activation, int64_t cols) {
    return !row().accepts({.weight = weight, .activation = activation, .rows = 64, .cols = cols}).empty();
  };
  EXPECT_FALSE(refuses(row_format(kInt8), row_format(kInt8), 131071));
  EXPECT_TRUE(refuses(row_format(kInt8), row_format(kInt8), 131072));
  EXPECT_TRUE(refuses(row_format(kInt8), plain_format(ElementType::kBf16), 64));
  EXPECT_TRUE(refuses(row_format(ElementType::kE4m3), row_format(kInt8), 64));
  EXPECT_TRUE(refuses(block_format(kInt8, 128, 128), row_format(kInt8), 64));
}

std::string isa_of(const ::testing::TestParamInfo<const char*>& row) {
  const std::string name = row.param;
  return name.substr(0, name.find('/'));
}
INSTANTIATE_TEST_SUITE_P(Rows, LinearInt8, ::testing::Values("avx2/int8", "avx512/vnni"), isa_of);

}  // namespace
}  // namespace octavo
