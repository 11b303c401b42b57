// WeightTransform: a model's tensors as they are before rounding, where something was folded into them. The network
// computes the same with them; their values round better. It stands in for the source's TensorReader, so that
// rounding, GPTQ, AWQ and the calibration pass all read the same tensors, a few rows or one tensor at a time.
//
//   Rotation: the residual stream x becomes x R. Norm weights go into the linear layers behind them; embedding rows,
//   and the outputs of o and down, are multiplied with R, inputs of q, k, v, gate, up and the head with R as well.
//   v's outputs and o's inputs get a Hadamard transform in every head; unless `online` is off, down's inputs get one in
//   blocks (the engine applies it behind the SiLU gate: ModelConfig::down_hadamard).
//   Channel factors s (SmoothQuant, AWQ): columns of a linear layer are multiplied with s, and what makes its input is
//   divided by s: the norm's weight, the rows of v (heads that share a KV head share factors), the rows of up.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "models/layers/decoder_layer.h"
#include "quantize/rotation.h"

namespace octavo {

struct TransformOptions {
  enum class Rotate : uint8_t { kNone, kOffline, kOnline };
  Rotate rotate = Rotate::kNone;  // kOffline: without the transform that the engine must apply
  uint64_t seed = 0;              // of the rotation
  float smooth = 0;               // SmoothQuant's exponent A, 0 < A < 1; 0: none
  bool awq = false;               // factors by AWQ's search

  bool any() const { return rotate != Rotate::kNone || fitted(); }
  // Factors come from activations.
  bool fitted() const { return smooth > 0 || awq; }
  std::string describe() const;  // "rotate online seed 0, smooth 0.5", ""
};

class WeightTransform final : public TensorReader {
 public:
  // `source` outlives it: a checkpoint of plain tensors. Error: a norm that cannot be read.
  static Result<std::unique_ptr<WeightTransform>> create(const Checkpoint& source, const TransformOptions& options);

  const TransformOptions& options() const { return options_; }
  // The model that these tensors make.
  const ModelConfig& config() const { return config_; }

  // Whether a place can have factors: the head cannot, nor can down behind a transform that the engine applies.
  bool can_scale(LinearInput input) const;
  // Of values per input channel, those that must have the same factor become the largest of them: channels of heads
  // that share a KV head.
  void share_largest(LinearInput input, std::span<float> per_channel) const;
  // Sets the factors of a place, one per input channel, positive, and reads from now on give scaled tensors. Factors
  // are first brought to values that can be folded: those of heads that share a KV head to the largest of them, those
  // behind a norm so that its new weight is exact in its stored type.
  void set_factors(int layer, LinearInput input, std::vector<float> factors);
  // nullptr where there are none.
  const std::vector<float>* factors(int layer, LinearInput input) const;

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  Result<void> read_f32(const TensorEntry& entry, int64_t begin, int64_t end, std::span<float> out) const override;
  void forget(const TensorEntry& entry, int64_t begin, int64_t end) const override;

  struct Tensor;  // what a name stands for: weight_transform.cc

 private:
  struct Norm {
    std::vector<float> weight;
    ElementType element;
  };

  WeightTransform(const Checkpoint& source, const TransformOptions& options);
  const TensorEntry& source_entry(const TensorEntry& entry) const;
  Result<void> rotated_rows(const Tensor& tensor, const TensorEntry& source, int64_t begin, int64_t end,
                            std::span<float> out) const;
  Result<void> rotate_whole(const Tensor& tensor, const TensorEntry& source) const;
  void rotate_columns(const Tensor& tensor, std::span<float> rows, int64_t cols) const;

  const TensorReader& source_;
  TransformOptions options_;
  ModelConfig config_;
  std::optional<Rotation> rotation_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, Norm, std::less<>> norms_;  // as stored
  std::map<std::pair<int, LinearInput>, std::vector<float>> factors_;
  mutable std::mutex mutex_;
  mutable std::string whole_name_;  // of the tensor in whole_, rotated, without factors
  mutable std::vector<float> whole_;
};

// A checkpoint that reads through a WeightTransform. `source` outlives it.
struct TransformedCheckpoint {
  Checkpoint checkpoint;
  WeightTransform* transform;  // owned by the checkpoint
};
Result<TransformedCheckpoint> transform_checkpoint(const Checkpoint& source, const TransformOptions& options);

}  // namespace octavo
