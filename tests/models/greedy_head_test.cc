// GreedyHead: the argmax of all logits, on any instruction set, with few of them computed.
#include "models/layers/greedy_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "formats/tensor.h"
#include "kernels/scratch.h"

namespace octavo {
namespace {

constexpr ElementType kBf16 = ElementType::kBf16;

// A head of BF16 weights, and inputs for it.
struct Problem {
  int64_t rows, cols;
  Matrix weights;
  std::vector<float> inputs;  // [M, cols]

  Problem(int64_t n, int64_t k, uint64_t seed) : rows(n), cols(k) {
    Random random(seed);
    weights = {.format = plain_format(kBf16), .rows = n, .cols = k, .codes = {}, .scales = {}, .zeros = {}};
    weights.codes = AlignedBytes(static_cast<size_t>(n * k * 2));
    for (int64_t i = 0; i < n * k; ++i) set(i / k, i % k, random.normal());
    for (int64_t i = 0; i < GreedyHead::kMostRows * k; ++i) inputs.push_back(random.normal());
  }
  void set(int64_t row, int64_t col, float value) {
    store_element(kBf16, weights.codes.data(), static_cast<size_t>(row * cols + col), value);
  }
  void copy_row(int64_t from, int64_t to) {
    std::memcpy(weights.codes.data() + to * cols * 2, weights.codes.data() + from * cols * 2,
                static_cast<size_t>(cols * 2));
  }
};

struct Found {
  std::vector<int32_t> best, expected;
  int64_t panels = 0;
};

// By GreedyHead, and from all logits.
Found search(const Problem& problem, int64_t m, Isa isa, int threads, int64_t limit) {
  ThreadPool pool(threads);
  const LinearKey key{
      .weight = plain_format(kBf16), .activation = plain_format(kBf16), .rows = problem.rows, .cols = problem.cols};
  PackedLinear head = choose_linear(key, isa).allocate(key);
  head.kernel = &choose_linear(key, isa);
  head.kernel->pack(head, 0, problem.weights.view());
  const auto rows = [&](int64_t begin, int64_t end, std::span<float> values) -> Result<void> {
    for (int64_t r = begin; r < end; ++r)
      dequantize_row(problem.weights.view(), r, values.data() + (r - begin) * problem.cols);
    return {};
  };
  Result<GreedyHead> greedy = GreedyHead::make(head, rows, isa, pool);
  EXPECT_TRUE(greedy);
  ActivationBuffer buffer;
  const Activation input = buffer.resize(plain_format(kBf16), m, problem.cols);
  for (int64_t r = 0; r < m; ++r)
    for (int64_t k = 0; k < problem.cols; ++k)
      store_element(kBf16, input.row(r), static_cast<size_t>(k),
                    problem.inputs[static_cast<size_t>(r * problem.cols + k)]);
  const int64_t stride = problem.rows + 7;
  std::vector<float> logits(static_cast<size_t>(m * stride));
  Scratch scratch;
  Found out;
  head.kernel->run({.weight = &head, .input = input, .output = logits.data(), .output_stride = stride}, pool, scratch);
  for (int64_t r = 0; r < m; ++r) {
    int32_t best = -1;
    float highest = -INFINITY;
    for (int64_t n = 0; n < limit; ++n)
      if (const float logit = logits[static_cast<size_t>(r * stride + n)]; logit > highest)
        highest = logit, best = static_cast<int32_t>(n);
    out.expected.push_back(std::isfinite(highest) ? best : -1);
  }
  out.best.resize(static_cast<size_t>(m));
  greedy->find({.input = input, .logits = logits.data(), .stride = stride, .limit = limit, .best = out.best}, pool,
               scratch);
  out.panels = greedy->panels_computed();
  return out;
}

class GreedyHeadOn : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_available(GetParam())) GTEST_SKIP() << "this machine lacks " << isa_name(GetParam());
  }
  Found expect_argmax(const Problem& problem, int64_t m, int64_t limit, int threads = 2) const {
    const Found found = search(problem, m, GetParam(), threads, limit);
    EXPECT_EQ(found.best, found.expected) << "M=" << m << " N=" << problem.rows << " K=" << problem.cols;
    return found;
  }
};

TEST_P(GreedyHeadOn, FindsTheArgmaxOfRandomHeads) {
  uint64_t seed = 1;
  for (const int64_t n : {1, 31, 33, 1000, 5000})
    for (const int64_t k : {2, 31, 64, 203})
      for (int64_t m = 1; m <= GreedyHead::kMostRows; ++m)
        for (const int64_t limit : {n, std::max<int64_t>(1, n - 5)}) expect_argmax(Problem(n, k, ++seed), m, limit, 3);
}

TEST_P(GreedyHeadOn, ComputesFewPanelsWhereOneLogitStandsOut) {
  Problem problem(4096, 128, 7);
  for (int64_t k = 0; k < 128; ++k) problem.set(1234, k, 3 * problem.inputs[static_cast<size_t>(k)]);
  const Found found = expect_argmax(problem, 1, 4096);
  EXPECT_EQ(found.best[0], 1234);
  EXPECT_EQ(found.panels, 1);
}

// Rows that differ by less than the INT8 copy tells apart, and equal ones: the lowest id wins.
TEST_P(GreedyHeadOn, NearTiesAndTiesAreDecidedByTheHeadItself) {
  Random random(3);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Problem problem(2000, 96, 100 + seed);
    for (int64_t k = 0; k < 96; ++k) problem.set(500, k, 2 * problem.inputs[static_cast<size_t>(k)]);
    for (const int64_t row : {17, 900, 1999}) {
      problem.copy_row(500, row);
      const auto k = static_cast<int64_t>(random.below(96));
      const std::byte* at = problem.weights.codes.data() + (row * 96 + k) * 2;
      const float value = load_element(kBf16, at, 0);
      problem.set(row, k, value + (random.below(2) == 0 ? 0x1p-6f : -0x1p-6f) * value);
    }
    problem.copy_row(500, 1700);
    problem.copy_row(500, 300);
    expect_argmax(problem, 1, 2000);
    expect_argmax(problem, 1, 1999);
  }
}

TEST_P(GreedyHeadOn, WhatIsNotFiniteIsAsInTheWholeHead) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Problem problem(600, 64, 9);
    problem.set(77, 5, bad);  // one logit of NaN or infinity: that of +infinity is the highest, and no choice
    expect_argmax(problem, 2, 600);
    problem.inputs[3] = bad;  // every logit of the first row
    const Found found = expect_argmax(problem, 2, 600);
    EXPECT_EQ(found.best[0], -1);
    EXPECT_NE(found.expected.size(), 0u);
  }
  Problem zeros(600, 64, 10);
  std::fill(zeros.inputs.begin(), zeros.inputs.end(), 0.0f);
  EXPECT_EQ(expect_argmax(zeros, 1, 600).best[0], 0);
  Problem huge(600, 64, 11);  // products near FP32's end
  for (int64_t i = 0; i < 600 * 64; ++i) huge.set(i / 64, i % 64, 1e37f * (i % 3 == 0 ? 1.0f : -1.0f));
  for (float& value : huge.inputs) value *= 100;
  expect_argmax(huge, 3, 600);
}

INSTANTIATE_TEST_SUITE_P(Isas, GreedyHeadOn,
                         ::testing::Values(Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

}  // namespace
}  // namespace octavo
