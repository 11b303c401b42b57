// Outlier channels: the rows of linear.inc agree bit for bit, in chunks and on threads too; producers take them out.
#include "kernels/producers.h"
#include "kernels/reference/quantize_row.h"
#include "linear_problem.h"

namespace octavo::testing {
namespace {

struct Formats {
  TensorFormat weight, activation;
};
const Formats kFormats[] = {
    {row_format(ElementType::kInt8), row_format(ElementType::kInt8)},
    {row_format(ElementType::kE4m3), row_format(ElementType::kE4m3)},
    {group_format(ElementType::kInt4, 32, ElementType::kBf16), plain_format(ElementType::kBf16)},
};

LinearProblem problem_of(const Formats& formats, int64_t m, std::vector<int64_t> slabs, int64_t k, int count) {
  LinearProblem problem = make_problem(formats.weight, formats.activation, m, std::move(slabs), k, 5);
  add_bias_and_residual(problem, 6);
  add_outlier_channels(problem, count, 7);
  return problem;
}

// What the layer would give without them, and their products added in order.
std::vector<float> by_hand(const LinearKernel& row, LinearProblem& problem) {
  const auto channels = static_cast<int64_t>(problem.outlier_channels.size());
  std::vector<float> weight = problem.outlier_weight;
  for (float& w : weight) {
    std::byte code[2];
    store_element(ElementType::kBf16, code, 0, w);
    w = load_element(ElementType::kBf16, code, 0);
  }
  std::vector<int32_t> kept;
  std::swap(kept, problem.outlier_channels);
  std::vector<float> y = outputs(row, problem);
  std::swap(kept, problem.outlier_channels);
  for (size_t at = 0; at < y.size(); ++at) {
    const int64_t m = static_cast<int64_t>(at) / problem.key.rows, n = static_cast<int64_t>(at) % problem.key.rows;
    for (int64_t i = 0; i < channels; ++i)
      y[at] = std::fma(problem.outliers[static_cast<size_t>(m * channels + i)],
                       weight[static_cast<size_t>(n * channels + i)], y[at]);
  }
  return y;
}

TEST(LinearOutliers, EveryRowAddsThemInOrder) {
  for (const Formats& formats : kFormats)
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 64, 97, 200})
      for (const int count : {1, 6}) {
        LinearProblem problem = problem_of(formats, m, {64, 37}, 192, count);
        const std::vector<float> reference = outputs(reference_row(), problem);
        for (const LinearKernel* row : linear_kernels()) {
          if (!isa_available(row->isa) || !row->accepts(problem.key).empty()) continue;
          const std::string what = fmt::format("{} {} M={}", row->name, formats.weight.describe(), m);
          const std::vector<float> got = outputs(*row, problem);
          expect_same_bits(by_hand(*row, problem), got, what);
          if (row->isa != Isa::kAvx512Bf16) expect_same_bits(reference, got, what);
        }
      }
}

TEST(LinearOutliers, ChunksAndThreadsDoNotChangeBits) {
  for (const Formats& formats : kFormats) {
    const LinearProblem problem = problem_of(formats, 70, {64, 20}, 192, 3);
    for (const LinearKernel* row : linear_kernels())
      if (isa_available(row->isa) && row->accepts(problem.key).empty()) expect_same_in_chunks(*row, problem);
  }
}

// On every row of producers.inc: the channels' values as they are, and codes and scales of the rest.
TEST(LinearOutliers, ProducersTakeThemOut) {
  const std::vector<int32_t> channels = {0, 17, 99};
  constexpr int64_t kRows = 5, kCols = 100;
  Random random(3);
  std::vector<float> x, gated, weight(kCols, 1.5f);
  for (int64_t i = 0; i < kRows * kCols; ++i) x.push_back(random.normal() * (i % kCols == 17 ? 500.0f : 1.0f));
  for (int64_t i = 0; i < 2 * kRows * kCols; ++i) gated.push_back(random.normal() * 3.0f);
  ThreadPool pool(2);
  for (const ElementType element : {ElementType::kInt8, ElementType::kE4m3})
    for (int kind = 0; kind < 3; ++kind) {
      const auto produce = [&](const ProducerKernels& row, const Activation& out) {
        if (kind == 0) row.quantize({x.data(), kCols, out}, pool);
        if (kind == 1) row.rms_norm({x.data(), kCols, weight.data(), 1e-5f, out}, pool);
        if (kind == 2) row.silu_gate({gated.data(), 2 * kCols, 0, out}, pool);
      };
      ActivationBuffer values_buffer, rest_buffer;
      const Activation values = values_buffer.resize(plain_format(ElementType::kF32), kRows, kCols);
      produce(*producer_kernels()[0], values);
      std::vector<float> taken;
      for (int64_t r = 0; r < kRows; ++r)
        for (const int32_t c : channels) {
          float& value = reinterpret_cast<float*>(values.row(r))[c];
          taken.push_back(value);
          value = 0;
        }
      const Activation rest = rest_buffer.resize(row_format(element), kRows, kCols);
      producer_kernels()[0]->quantize({reinterpret_cast<const float*>(values.codes), values.code_stride / 4, rest},
                                      pool);
      for (const ProducerKernels* row : producer_kernels()) {
        if (!isa_available(row->isa)) continue;
        ActivationBuffer buffer;
        const Activation out = buffer.resize(row_format(element), kRows, kCols, 1.0f, channels);
        produce(*row, out);
        expect_same_bits(taken, {out.outliers, out.outliers + taken.size()}, std::string(row->name));
        expect_same_bits({rest.scales, rest.scales + kRows}, {out.scales, out.scales + kRows}, std::string(row->name));
        for (int64_t r = 0; r < kRows; ++r)
          EXPECT_EQ(std::memcmp(rest.row(r), out.row(r), kCols), 0) << row->name << " kind " << kind << " row " << r;
      }
    }
}

}  // namespace
}  // namespace octavo::testing
