#include "quantize/rotation.h"

#include <cmath>
#include <cstddef>

#include "base/random.h"
#include "kernels/hadamard.h"

namespace octavo {
namespace {

// Gram and Schmidt, twice for accuracy, on rows of normal random numbers.
std::vector<double> random_orthogonal(int64_t n, Random& random) {
  std::vector<double> rows(static_cast<size_t>(n * n));
  for (double& value : rows) value = random.normal();
  for (int64_t i = 0; i < n; ++i) {
    double* row = rows.data() + i * n;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        const double* other = rows.data() + j * n;
        double dot = 0;
        for (int64_t c = 0; c < n; ++c) dot += row[c] * other[c];
        for (int64_t c = 0; c < n; ++c) row[c] -= dot * other[c];
      }
    double norm = 0;
    for (int64_t c = 0; c < n; ++c) norm += row[c] * row[c];
    for (int64_t c = 0; c < n; ++c) row[c] /= std::sqrt(norm);
  }
  return rows;
}

}  // namespace

Rotation::Rotation(int64_t size, uint64_t seed)
    : size_(size), power_(largest_power_of_two(size)), runs_(size / power_), signs_(static_cast<size_t>(size)) {
  Random random(seed);
  for (float& sign : signs_) sign = random.below(2) == 0 ? 1.0f : -1.0f;
  across_ = random_orthogonal(runs_, random);
}

void Rotation::apply(float* values, int64_t inner) const {
  for (int64_t i = 0; i < size_; ++i)
    for (int64_t k = 0; k < inner; ++k) values[i * inner + k] *= signs_[static_cast<size_t>(i)];
  hadamard_along(values, size_, inner, power_);
  if (runs_ == 1) return;
  std::vector<double> in(static_cast<size_t>(runs_));
  for (int64_t k = 0; k < power_ * inner; ++k) {  // value k of every run
    for (int64_t r = 0; r < runs_; ++r) in[static_cast<size_t>(r)] = values[r * power_ * inner + k];
    for (int64_t c = 0; c < runs_; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < runs_; ++r)
        sum += in[static_cast<size_t>(r)] * across_[static_cast<size_t>(r * runs_ + c)];
      values[c * power_ * inner + k] = static_cast<float>(sum);
    }
  }
}

void hadamard_along(float* values, int64_t count, int64_t inner, int64_t block) {
  if (inner == 1) return hadamard_blocks(values, count, block);
  for (int64_t half = 1; half < block; half *= 2)
    for (int64_t begin = 0; begin < count; begin += 2 * half)
      for (int64_t i = begin; i < begin + half; ++i) {
        float *a = values + i * inner, *b = a + half * inner;
        for (int64_t k = 0; k < inner; ++k) {
          const float x = a[k], y = b[k];
          a[k] = x + y;
          b[k] = x - y;
        }
      }
  const float scale = hadamard_scale(block);
  for (int64_t i = 0; i < count * inner; ++i) values[i] *= scale;
}

}  // namespace octavo
