// The reference linear layer: any format, one output at a time, in the order that kernels/linear.h states.
#include "kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace octavo::reference {
namespace {

// Weights as FP32 element values [N, K] (zero points taken off, scales apart), then the scale of each group: [N][groups
// along K], and behind them the outer scale of each row.
float* elements(PackedLinear& packed) {
  return reinterpret_cast<float*>(packed.panels.data());
}
const float* elements(const PackedLinear& packed) {
  return reinterpret_cast<const float*>(packed.panels.data());
}

bool grouped_along_k(const TensorFormat& format) {
  return format.granularity == Granularity::kBlock;
}

int64_t groups(const TensorFormat& format, int64_t cols) {
  return grouped_along_k(format) ? format.scale_cols(cols) : 1;
}

// Columns of one chain: the finer of the two sides' groups, which divides the other; all K where neither is grouped.
int64_t chain_length(const LinearKey& key) {
  int64_t length = key.cols;
  if (grouped_along_k(key.weight)) length = std::min<int64_t>(length, key.weight.block_cols);
  if (grouped_along_k(key.activation)) length = std::min<int64_t>(length, key.activation.block_cols);
  return length;
}

std::string accepts(const LinearKey& key) {
  if (!grouped_along_k(key.weight) || !grouped_along_k(key.activation)) return {};
  const int w = key.weight.block_cols, x = key.activation.block_cols;
  if (std::max(w, x) % std::min(w, x) != 0)
    return fmt::format("weight groups of {} columns and activation groups of {}", key.weight.block_cols,
                       key.activation.block_cols);
  return {};
}

PackedLinear allocate(const LinearKey& key) {
  PackedLinear packed{.key = key};
  packed.panels = AlignedBytes(static_cast<size_t>(key.rows * key.cols) * sizeof(float));
  packed.scales = AlignedArray<float>(static_cast<size_t>(key.rows * (groups(key.weight, key.cols) + 1)));
  return packed;
}

void pack(PackedLinear& packed, int64_t row0, const MatrixView& slab) {
  const int64_t cols = packed.key.cols, num_groups = groups(packed.key.weight, cols);
  for (int64_t r = 0; r < slab.rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) elements(packed)[(row0 + r) * cols + c] = slab.element_at(r, c);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t col = grouped_along_k(slab.format) ? g * slab.format.block_cols : 0;
      packed.scales[static_cast<size_t>((row0 + r) * num_groups + g)] =
          slab.format.scaled() ? slab.scales[slab.grid_index(r, col)] : 1.0f;
    }
    packed.scales[static_cast<size_t>(packed.key.rows * num_groups + row0 + r)] =
        slab.format.outer() ? slab.outer.value() : 1.0f;
  }
}

bool is_int8(const LinearKey& key) {
  return key.weight.element == ElementType::kInt8 && key.activation.element == ElementType::kInt8 &&
         !key.weight.zero_points;
}

// One chain over columns [begin, end).
float chain(const LinearKey& key, const float* x, const float* w, int64_t begin, int64_t end) {
  if (is_int8(key)) {
    int32_t sum = 0;
    for (int64_t k = begin; k < end; ++k) sum += static_cast<int32_t>(x[k]) * static_cast<int32_t>(w[k]);
    return static_cast<float>(sum);
  }
  float sum = 0.0f;
  for (int64_t k = begin; k < end; ++k) sum = std::fma(x[k], w[k], sum);
  return sum;
}

// The sum over k of one output, before bias.
float dot(const PackedLinear& packed, int64_t n, const Activation& input, int64_t m, const float* x) {
  const LinearKey& key = packed.key;
  const float* w = elements(packed) + n * key.cols;
  const int64_t num_groups = groups(key.weight, key.cols);
  const float* w_scales = packed.scales.data() + n * num_groups;
  const float outer = packed.scales[static_cast<size_t>(key.rows * num_groups + n)];
  const bool w_grouped = grouped_along_k(key.weight), x_grouped = grouped_along_k(key.activation);
  const float w_whole = w_grouped ? outer : w_scales[0], x_whole = x_grouped ? 1.0f : input.scale(m, 0);
  if (!w_grouped && !x_grouped) return chain(key, x, w, 0, key.cols) * (w_whole * x_whole);
  const int64_t length = chain_length(key);
  float total = 0.0f;
  for (int64_t k = 0; k < key.cols; k += length) {
    const float w_scale = w_grouped ? w_scales[k / key.weight.block_cols] : 1.0f;
    const float x_scale = x_grouped ? input.scale(m, k) : 1.0f;
    total = std::fma(chain(key, x, w, k, std::min(key.cols, k + length)), w_scale * x_scale, total);
  }
  return total * (w_whole * x_whole);
}

void run(const LinearCall& call, ThreadPool& pool, Scratch& scratch) {
  const PackedLinear& packed = *call.weight;
  const Activation& input = call.input;
  const int64_t cols = packed.key.cols;
  auto* x = static_cast<float*>(scratch.get(0, static_cast<size_t>(input.rows * cols) * sizeof(float)));
  for (int64_t m = 0; m < input.rows; ++m)
    for (int64_t k = 0; k < cols; ++k)
      x[m * cols + k] = load_element(input.format.element, input.row(m), static_cast<size_t>(k));
  const auto wanted = [&](int64_t n) {
    return call.panels.empty() || std::binary_search(call.panels.begin(), call.panels.end(), n / 32);
  };
  pool.parallel_for(packed.key.rows, 32, [&](int64_t begin, int64_t end, int) {
    for (int64_t m = 0; m < input.rows; ++m)
      for (int64_t n = begin; n < end; ++n) {
        if (!wanted(n)) continue;
        float& out = call.output[m * call.output_stride + n];
        float y = dot(packed, n, input, m, x + m * cols);
        if (!packed.bias.empty()) y = y + packed.bias[static_cast<size_t>(n)];
        out = call.accumulate ? y + out : y;
        for (int64_t i = 0; i < packed.num_outliers; ++i)
          out = std::fma(input.outliers[m * packed.num_outliers + i],
                         load_element(ElementType::kBf16, packed.outliers.data(), packed.outlier_index(n, i)), out);
      }
  });
}

}  // namespace

extern const LinearKernel kLinearReference;
const LinearKernel kLinearReference{"reference", Isa::kReference, accepts, allocate, pack, run};

}  // namespace octavo::reference
