// GreedyHead: the token of the highest logit, without reading the whole head. It keeps an INT8 copy of the head's BF16
// weights, half the bytes, and how far each row of the copy may be off. The copy's logits and these bounds leave a few
// panels of 32 rows in which the highest logit can be; the head's own kernel computes those. The result is the argmax
// of all logits to the last bit.
//
// Bound (Cauchy-Schwarz): |w.x - q.x| <= ||w - q|| ||x||, and what both sums may be off by rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "models/layers/linear_group.h"

namespace octavo {

// What a search looks for, and where it may write.
struct GreedySearch {
  Activation input;         // [M, K] BF16: what the head reads
  float* logits = nullptr;  // [M, stride >= rows of the head]: memory; afterwards exact in some panels, near elsewhere
  int64_t stride = 0;
  int64_t limit = 0;        // ids below it
  std::span<int32_t> best;  // [M]: the lowest id of the highest logit; -1 where that is not finite
};

class GreedyHead {
 public:
  // More rows read less per row anyway.
  static constexpr int64_t kMostRows = 4;

  // The one layer of a head that this can be done for: BF16 with BF16 inputs, no bias, no outlier channels. Else null.
  static const PackedLinear* fits(const LinearGroup& head);
  // rows(begin, end, values): rows of the weights that `head` was packed from, as FP32. `head` stays where it is.
  using ReadRows = FunctionRef<Result<void>(int64_t begin, int64_t end, std::span<float> values)>;
  static Result<GreedyHead> make(const PackedLinear& head, ReadRows rows, Isa isa, ThreadPool& pool);

  size_t bytes() const { return copy_.bytes() + bounds_.size() * sizeof(float); }
  // Bytes of the head and of the copy that the last search read.
  size_t bytes_read() const { return bytes() + wanted_.size() * panel_bytes_; }
  int64_t panels_computed() const { return std::ssize(wanted_); }

  void find(const GreedySearch& search, ThreadPool& pool, Scratch& scratch);

 private:
  explicit GreedyHead(const PackedLinear& head, Isa isa);
  Result<void> fill(ReadRows rows, ThreadPool& pool);
  void pack(int64_t begin, int64_t end, std::span<float> values);
  void choose_panels(const GreedySearch& search, ThreadPool& pool);

  const PackedLinear* head_;
  size_t panel_bytes_;           // of the head
  PackedLinear copy_;            // INT8, a scale per row
  AlignedArray<float> bounds_;   // [rows]: |logit - the copy's| <= bound x ||x||; NaN where a weight is not finite
  std::vector<float> norms_;     // of the rows of x
  std::vector<float> floors_;    // [M][threads]: no highest logit is below these
  std::vector<uint8_t> marked_;  // panels
  std::vector<int32_t> wanted_;  // panels, ascending
};

}  // namespace octavo
