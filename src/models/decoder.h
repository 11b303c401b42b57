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
#include "kernels/attention.h"
#include "kernels/producers.h"
#include "models/layers/linear_group.h"
#include "models/rope_cache.h"
#include "precision/plan.h"

namespace octavo {

// Tokens of several requests in one pass.
struct Batch {
  std::span<const int32_t> tokens;        // [rows]; ids checked by the caller
  std::span<const KvSequence> sequences;  // cover all rows, in order
  std::span<const int64_t> logit_rows;    // rows whose logits are wanted
};

// What loading found and did, line by line.
struct LoadReport {
  std::vector<LinearLoad> linears;
  std::vector<Checkpoint::Unused> unused;
  std::vector<std::string> notes;
  size_t linear_bytes = 0, embedding_bytes = 0, norm_bytes = 0;
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
  // The layers' KV formats and the checkpoint's stored scales; `layers` come from a PagePool of this geometry.
  void attach_kv_scales(std::span<PagedKvLayer> layers) const;

  // logits: [logit_rows, logits_stride >= vocab_size]. `hidden`, if set, sees the input of every layer (i = 0 ..
  // num_layers - 1) and the output of the final norm (i = num_layers), all rows [rows, hidden_size].
  using HiddenHook = std::function<void(int64_t i, const float* rows, int64_t stride)>;
  void forward(const Batch& batch, std::span<const PagedKvLayer> kv, float* logits, int64_t logits_stride,
               ThreadPool& pool, const HiddenHook& hidden = {});

  struct Layer {
    AlignedArray<float> input_norm, post_norm, q_norm, k_norm;
    LinearGroup qkv, o, gate_up, down;
    std::vector<float> k_scales, v_scales;  // [num_kv_heads] or empty
    const AttentionKernel* attention = nullptr;
    int64_t window = 0;
  };
  const std::vector<Layer>& layers() const { return layers_; }
  const LinearGroup& head() const { return head_; }
  const ProducerKernels& producers() const { return *producers_; }
  size_t scratch_bytes() const { return scratch_->total_bytes(); }

 private:
  Result<void> load_embedding(const Checkpoint& checkpoint, const PrecisionPlan& plan);
  void attention_block(const Layer& layer, const Batch& batch, const PagedKvLayer& kv, ThreadPool& pool);
  void mlp_block(const Layer& layer, int64_t rows, ThreadPool& pool);
  void logits_block(const Batch& batch, float* logits, int64_t stride, ThreadPool& pool);

  const ModelConfig* config_ = nullptr;
  TensorView embedding_;
  AlignedBytes embedding_memory_;  // only where the checkpoint stores it in blocks
  AlignedArray<float> final_norm_;
  std::vector<Layer> layers_;
  LinearGroup head_;
  const ProducerKernels* producers_ = nullptr;
  std::unique_ptr<RopeCache> rope_;
  LoadReport report_;

  // Step memory, reused.
  AlignedArray<float> x_, wide_;
  ActivationBuffer activation_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace octavo
