// The row avx512_bf16/dot: close to the reference row, and the same bits for every M, chunking and thread count.
#include "kernels/linear_problem.h"

namespace octavo {
namespace {

using testing::add_bias_and_residual;
using testing::expect_same_in_chunks;
using testing::find_row;
using testing::LinearProblem;
using testing::make_problem;
using testing::outputs;
using testing::reference_row;

constexpr ElementType kBf16 = ElementType::kBf16, kE4m3 = ElementType::kE4m3;

class LinearBf16 : public ::testing::Test {
 protected:
  const LinearKernel& row() const { return *find_row("avx512_bf16/dot"); }
  bool available() const {
    if (isa_available(row().isa)) return true;
    const LinearKey key{.weight = row_format(kE4m3), .activation = row_format(kE4m3), .rows = 32, .cols = 32};
    EXPECT_NE(&choose_linear(key, Isa::kAvx512Bf16), &row());
    return false;
  }

  void expect_close(const LinearProblem& problem, int threads = 1) const {
    testing::expect_close(problem, outputs(reference_row(), problem), outputs(row(), problem, threads));
  }
};

TEST_F(LinearBf16, EveryProductOfTwoE4m3CodesIsExact) {
  if (!available()) return;
  LinearProblem problem = make_problem(tensor_wide_format(kE4m3), tensor_wide_format(kE4m3), 256, {256}, 1, 1);
  for (int code = 0; code < 256; ++code)
    problem.slabs[0].codes.data()[code] = problem.input.codes.data()[code] = std::byte(code);
  const std::vector<float> expected = outputs(reference_row(), problem), actual = outputs(row(), problem);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (is_nan(expected[i]))
      ASSERT_TRUE(is_nan(actual[i])) << i;
    else
      ASSERT_EQ(expected[i], actual[i]) << i;
  }
}

TEST_F(LinearBf16, CloseToTheReferenceForEveryFormat) {
  if (!available()) return;
  uint64_t seed = 10;
  for (const TensorFormat& weight :
       {plain_format(kBf16), row_format(kE4m3), tensor_wide_format(kE4m3), block_format(kE4m3, 128, 128)})
    for (const TensorFormat& activation :
         {plain_format(kBf16), row_format(kE4m3), tensor_wide_format(kE4m3), block_format(kE4m3, 1, 128)})
      for (const int64_t m : {1, 2, 3, 8, 9, 40})
        for (const int64_t k : {33, 300}) expect_close(make_problem(weight, activation, m, {70}, k, ++seed), 2);
}

TEST_F(LinearBf16, BiasResidualAndSlabs) {
  if (!available()) return;
  for (const int64_t m : {1, 20}) {
    LinearProblem problem = make_problem(row_format(kE4m3), row_format(kE4m3), m, {96, 33}, 257, 3);
    add_bias_and_residual(problem, 4);
    expect_close(problem, 3);
  }
}

TEST_F(LinearBf16, AnyChunkingAndThreadCountGivesTheSameBits) {
  if (!available()) return;
  expect_same_in_chunks(row(), make_problem(row_format(kE4m3), row_format(kE4m3), 300, {288}, 701, 15));
  expect_same_in_chunks(row(),
                        make_problem(block_format(kE4m3, 128, 128), block_format(kE4m3, 1, 128), 100, {96}, 500, 16));
  expect_same_in_chunks(row(), make_problem(plain_format(kBf16), plain_format(kBf16), 50, {96}, 301, 17));
}

TEST_F(LinearBf16, RefusesFloat32) {
  EXPECT_FALSE(row().accepts({.weight = plain_format(ElementType::kF32), .activation = plain_format(kBf16)}).empty());
  EXPECT_FALSE(row().accepts({.weight = plain_format(kBf16), .activation = plain_format(ElementType::kF32)}).empty());
  std::vector<std::string> why_not;
  const LinearKey key{
      .weight = row_format(kE4m3), .activation = plain_format(ElementType::kF32), .rows = 32, .cols = 32};
  if (available()) {
    EXPECT_EQ(choose_linear(key, Isa::kAvx512Bf16, &why_not).name, "avx512/fma");
    ASSERT_FALSE(why_not.empty());
    EXPECT_EQ(why_not[0], "avx512_bf16/dot: float32 activations");
  }
}

}  // namespace
}  // namespace octavo
