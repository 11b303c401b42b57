// Decoder: the transformer that ModelConfig describes, with the formats that a PrecisionPlan gives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  // Of all layers, since it was loaded, in every cache that was attached.
  struct KvClipped {
    uint64_t k = 0, v = 0;
  };
  KvClipped kv_clipped() const;

  // logits: [logit_rows, logits_stride >= vocab_size]. `hidden`, if set, sees the input of every layer (i = 0 ..
  // num_layers - 1) and the output of the final norm (i = num_layers), all rows [rows, hidden_size].
  using HiddenHook = std::function<void(int64_t i, const float* rows, int64_t stride)>;
  void forward(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
               ThreadPool& pool, const HiddenHook& hidden = {});

  // For callers that want the highest logit alone (models/layers/greedy_head.h). Nothing happens where the head's
  // format does not fit, or the head has fewer bytes than `smallest`: caches hold those.
  Result<void> load_greedy_head(const Checkpoint& checkpoint, Isa isa, ThreadPool& pool,
                                size_t smallest = size_t{4} << 20);
  const GreedyHead* greedy_head() const { return greedy_head_ ? &*greedy_head_ : nullptr; }
  bool can_find_highest(int64_t rows) const { return greedy_head_ && rows <= GreedyHead::kMostRows; }
  // best[i]: the id of the highest logit of logit row i, as GreedySearch says; `logits` is memory for it.
  void forward_highest(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
                       int64_t limit, std::span<int32_t> best, ThreadPool& pool);

  using Layer = DecoderLayer;
  const std::vector<Layer>& layers() const { return layers_; }
  const LinearGroup& head() const { return head_; }
  // The memory of all packed weights, in the order in which a step reads it.
  std::vector<std::span<const std::byte>> weight_blocks() const;
  const ProducerKernels& producers() const { return runner_->producers(); }
  size_t scratch_bytes() const { return runner_->scratch_bytes(); }

 private:
  void layers_block(const Batch& batch, std::span<const PagedKvLayer> kv, ThreadPool& pool, const HiddenHook& hidden);
  // Of the rows whose logits are wanted: [logit_rows, hidden_size].
  const float* pick_rows(const Batch& batch);

  const ModelConfig* config_ = nullptr;
  Embedding embedding_;
  AlignedArray<float> final_norm_;
  std::vector<Layer> layers_;
  LinearGroup head_;
  std::optional<GreedyHead> greedy_head_;
  LoadReport report_;
  std::unique_ptr<KvClipping[]> kv_clipping_;  // by layer

  // Step memory, reused.
  AlignedArray<float> x_, picked_;
  std::unique_ptr<LayerRunner> runner_;
};

}  // namespace octavo
