// Rotations that spread outlying channels over all of them, and that weights can absorb (QuaRot, Ashkboos et al., 2024;
// SpinQuant, Liu et al., 2024).
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// An orthogonal matrix R of the residual stream's width n = p x m, p the largest power of two in n: random signs, a
// Hadamard transform of every run of p values, and a random orthogonal matrix across the m runs. Drawn from a seed.
class Rotation {
 public:
  Rotation(int64_t size, uint64_t seed);

  int64_t size() const { return size_; }
  // values: [size] vectors of `inner` each (inner 1: one vector of size values). Along the first axis: x becomes x R.
  void apply(float* values, int64_t inner) const;

 private:
  int64_t size_, power_, runs_;
  std::vector<float> signs_;    // [size]
  std::vector<double> across_;  // [runs, runs], orthogonal
};

// The Hadamard transform along the first axis of [count][inner] values, in blocks of `block` along it.
void hadamard_along(float* values, int64_t count, int64_t inner, int64_t block);

}  // namespace octavo
