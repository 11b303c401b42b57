// Decoder: the transformer that ModelConfig describes, with the formats that a PrecisionPlan gives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "formats/paged_kv.h"
#include "models/layers/decoder_layer.h"
#include "precision/plan.h"

namespace octavo {

// Tokens of several requests in one pass.
struct Batch {
  std::span<const int32_t> tokens;        // [rows]; ids checked by the caller
  std::span<const KvSequence> sequences;  // cover all rows, in order
  std::span<const int64_t> logit_rows;    // rows whose logits are wanted
};

struct LoadProgress {
  int done = 0, total = 0;  // layers
};

class Decoder {
 public:
  // Loads and packs every weight. The checkpoint must outlive the decoder: the embedding stays where it is mapped.
  static Result<Decoder> load(const Checkpoint& checkpoint, const PrecisionPlan& plan, Isa isa, ThreadPool& pool,
                              const std::function<void(LoadProgress)>& progress = {});

  const ModelConfig& config() const { return *config_; }
  const LoadReport& report() const { return report_; }
  // The checkpoint's stored scales and calibrated factors; `layers` come from a PagePool of this geometry.
  void attach_kv_scales(std::span<PagedKvLayer> layers) const;

  // logits: [logit_rows, logits_stride >= vocab_size]. `hidden`, if set, sees the input of every layer (i = 0 ..
  // num_layers - 1) and the output of the final norm (i = num_layers), all rows [rows, hidden_size].
  using HiddenHook = std::function<void(int64_t i, const float* rows, int64_t stride)>;
  void forward(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
               ThreadPool& pool, const HiddenHook& hidden = {});

  using Layer = DecoderLayer;
  const std::vector<Layer>& layers() const { return layers_; }
  const LinearGroup& head() const { return head_; }
  const ProducerKernels& producers() const { return runner_->producers(); }
  size_t scratch_bytes() const { return runner_->scratch_bytes(); }

 private:
  void logits_block(const Batch& batch, float* logits, int64_t stride, ThreadPool& pool);

  const ModelConfig* config_ = nullptr;
  Embedding embedding_;
  AlignedArray<float> final_norm_;
  std::vector<Layer> layers_;
  LinearGroup head_;
  LoadReport report_;

  // Step memory, reused.
  AlignedArray<float> x_, picked_;
  std::unique_ptr<LayerRunner> runner_;
};

}  // namespace octavo
