#include "quantize/hessian.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/linear.h"

namespace octavo {
namespace {

constexpr int64_t kBlock = 192;  // columns of H computed at a time, from its diagonal down: a multiple of 32

float widen(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}
float widen(float value) {
  return value;
}
template <class T>
T narrow(float value) {
  T out;
  store_element(sizeof(T) == 2 ? ElementType::kBf16 : ElementType::kF32, &out, 0, value);
  return out;
}

// What each row is multiplied with.
template <class T>
std::vector<float> row_factors(const Activation& rows, ThreadPool& pool) {
  std::vector<double> squares(static_cast<size_t>(rows.rows));
  pool.parallel_for(rows.rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = reinterpret_cast<const T*>(rows.row(r));
      double sum = 0;
      for (int64_t c = 0; c < rows.cols; ++c) sum += static_cast<double>(widen(row[c])) * widen(row[c]);
      squares[static_cast<size_t>(r)] = sum;
    }
  });
  std::vector<double> sorted = squares;
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double most = *middle > 0 ? Hessian::kLongestRow * *middle : std::numeric_limits<double>::infinity();
  std::vector<float> factors;
  for (const double square : squares)
    factors.push_back(square > most ? static_cast<float>(std::sqrt(most / square)) : 1.0f);
  return factors;
}

// Tokens with the zeros behind them that a block is packed with: at most a quarter more, and few different numbers.
int64_t padded_tokens(int64_t tokens) {
  const int64_t step = std::max<int64_t>(16, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens))) / 4);
  return (tokens + step - 1) / step * step;
}

// out[c][r] = rows[r][c] x factors[r], `stride` elements between the rows of out.
template <class T>
void transpose(const Activation& rows, std::span<const float> factors, T* out, int64_t stride, ThreadPool& pool) {
  constexpr int64_t kTile = 32;
  const int64_t tiles = (rows.cols + kTile - 1) / kTile;
  pool.parallel_for(tiles, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r0 = 0; r0 < rows.rows; r0 += kTile)
      for (int64_t tile = begin; tile < end; ++tile)
        for (int64_t r = r0; r < std::min(r0 + kTile, rows.rows); ++r) {
          const T* row = reinterpret_cast<const T*>(rows.row(r));
          const float factor = factors[static_cast<size_t>(r)];
          for (int64_t c = tile * kTile; c < std::min((tile + 1) * kTile, rows.cols); ++c)
            out[c * stride + r] = factor == 1.0f ? row[c] : narrow<T>(widen(row[c]) * factor);
        }
  });
}

}  // namespace

Hessian::Hessian(int64_t size, Isa isa, HessianWork& work)
    : size_(size), isa_(isa), work_(&work), values_(static_cast<size_t>(size * size)) {}

void Hessian::add(const Activation& rows, ThreadPool& pool) {
  OCTAVO_CHECK(rows.cols == size_ && !rows.format.scaled() && !mirrored_, "{} columns of {}", rows.cols, size_);
  if (rows.rows <= 0) return;
  const ElementType element = rows.format.element;
  const int64_t tokens = padded_tokens(rows.rows);
  const int64_t bytes = element_bits(element) / 8, row_bytes = tokens * bytes, filled = rows.rows * bytes;
  const int64_t stride_bytes = (row_bytes + 63) / 64 * 64;
  auto& [transposed, block, packed_blocks, scratch] = *work_;
  if (transposed.size() < static_cast<size_t>(size_ * stride_bytes))
    transposed = AlignedBytes(static_cast<size_t>(size_ * stride_bytes));
  for (int64_t r = 0; r < size_; ++r)  // an earlier, longer sample may have left values there
    std::memset(transposed.data() + r * stride_bytes + filled, 0, static_cast<size_t>(stride_bytes - filled));
  if (element == ElementType::kBf16)
    transpose(rows, row_factors<uint16_t>(rows, pool), reinterpret_cast<uint16_t*>(transposed.data()),
              stride_bytes / bytes, pool);
  else
    transpose(rows, row_factors<float>(rows, pool), reinterpret_cast<float*>(transposed.data()), stride_bytes / bytes,
              pool);

  // H[b0.., b0..b1) += X^T X of the block's columns: the block is the weight, the features from b0 on are the input.
  if (block.size() < static_cast<size_t>(kBlock * row_bytes))
    block = AlignedBytes(static_cast<size_t>(kBlock * row_bytes));
  for (int64_t b0 = 0; b0 < size_; b0 += kBlock) {
    const int64_t b1 = std::min(size_, b0 + kBlock);
    const LinearKey key{plain_format(element), plain_format(element), b1 - b0, tokens};
    const LinearKernel& kernel = choose_linear(key, isa_);
    // Kept for the next sample: memory of packed weights goes back in large pieces alone (base/aligned.h), so that
    // blocks of every sample beside the layer's own weights would pile up.
    PackedLinear& packed = packed_blocks[{key.rows, tokens}];
    if (packed.kernel != &kernel || packed.key.weight != key.weight) packed = kernel.allocate(key);
    packed.kernel = &kernel;
    for (int64_t r = b0; r < b1; ++r)
      std::memcpy(block.data() + (r - b0) * row_bytes, transposed.data() + r * stride_bytes,
                  static_cast<size_t>(row_bytes));
    kernel.pack(packed, 0, {key.weight, key.rows, key.cols, block.data(), nullptr});
    const Activation input{.format = key.activation,
                           .rows = size_ - b0,
                           .cols = tokens,
                           .codes = transposed.data() + b0 * stride_bytes,
                           .code_stride = stride_bytes};
    kernel.run({.weight = &packed,
                .input = input,
                .output = values_.data() + b0 * size_ + b0,
                .output_stride = size_,
                .accumulate = true},
               pool, scratch);
  }
  tokens_ += rows.rows;
}

void Hessian::clear(std::span<const int32_t> channels) {
  matrix();
  for (const int32_t channel : channels)
    for (int64_t i = 0; i < size_; ++i)
      values_.data()[channel * size_ + i] = values_.data()[i * size_ + channel] = 0.0f;
}

std::span<const float> Hessian::matrix() {
  if (!mirrored_)
    for (int64_t r = 0; r < size_; ++r)
      for (int64_t c = 0; c < r; ++c) values_.data()[c * size_ + r] = values_.data()[r * size_ + c];
  mirrored_ = true;
  return values_.span();
}

}  // namespace octavo
