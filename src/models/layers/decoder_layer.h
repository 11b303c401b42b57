// One layer of the decoder: its weights, how they are loaded, and the steps that run it. The decoder runs the steps one
// after another; a calibration stops between them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "formats/paged_kv.h"
#include "kernels/attention.h"
#include "kernels/producers.h"
#include "models/layers/experts.h"
#include "models/layers/greedy_head.h"
#include "models/layers/linear_group.h"
#include "models/layers/linear_place.h"
#include "models/rope_cache.h"
#include "precision/plan.h"

namespace octavo {

// What loading found and did, line by line.
struct LoadReport {
  std::vector<LinearLoad> linears;
  std::vector<Checkpoint::Unused> unused;
  std::vector<std::string> notes;
  size_t linear_bytes = 0, embedding_bytes = 0, norm_bytes = 0;
};

struct DecoderLayer {
  struct Expert {
    LinearGroup gate_up, down;
  };
  AlignedArray<float> input_norm, post_norm, q_norm, k_norm;
  LinearGroup qkv, o;
  LinearGroup gate_up, down;  // of a dense layer
  LinearGroup router;         // of a layer with experts
  std::vector<Expert> experts;
  std::vector<float> k_scales, v_scales;              // [num_kv_heads] or empty
  std::vector<float> q_factors, k_zeros, k_inverses;  // [num_kv_heads x head_dim] or empty: formats/paged_kv.h
  const AttentionKernel* attention = nullptr;
  int64_t window = 0;

  LinearGroup& group(const LinearPlace& place);
  // In the order in which a token passes them.
  std::vector<const LinearGroup*> groups() const;
};

// Loads layers, whole or in parts. The checkpoint and the plan outlive it.
class LayerLoader {
 public:
  LayerLoader(const Checkpoint& checkpoint, const PrecisionPlan& plan, Isa isa, ThreadPool& pool, LoadReport& report);

  Result<DecoderLayer> load(int layer) const;
  // All but the linear groups, which are empty.
  Result<DecoderLayer> frame(int layer) const;
  Result<LinearGroup> group(const LinearPlace& place) const;
  // The group with weights of another source than the checkpoint.
  Result<LinearGroup> group(const LinearPlace& place, LinearSource source) const;
  Result<AlignedArray<float>> final_norm() const;

 private:
  // Stored KV scales and what else the layer's KV plan takes from a calibration.
  Result<void> load_kv(int layer, DecoderLayer& out) const;
  Result<std::vector<float>> stored_kv_scales(int layer, bool key) const;
  const Checkpoint& checkpoint_;
  const PrecisionPlan& plan_;
  Isa isa_;
  ThreadPool& pool_;
  LoadReport& report_;
  std::map<LinearPlace, std::vector<LinearModule>> modules_;
};

// Token embeddings: mapped from the checkpoint, or decoded once where it stores them in blocks.
struct Embedding {
  TensorView view;
  AlignedBytes memory;
};
Result<Embedding> load_embedding(const Checkpoint& checkpoint, const PrecisionPlan& plan, LoadReport& report);

// Tokens that pass through a layer together.
struct LayerRows {
  float* x = nullptr;  // [rows, hidden_size], the residual stream, FP32
  int64_t rows = 0;
  std::span<const KvSequence> sequences;  // cover all rows, in order
};

// The steps of a layer, and the memory that they reuse. Between project_qkv and attend, between project_gate_up and
// silu_gate, and from route to add_experts, the intermediate rows are held here.
class LayerRunner {
 public:
  using Produce = FunctionRef<void(const Activation&)>;

  LayerRunner(const ModelConfig& config, Isa isa);

  void attention_block(const DecoderLayer& layer, const LayerRows& r, const PagedKvLayer& kv, ThreadPool& pool);
  void mlp_block(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool);

  // out = norm(x), `out.rows` rows
  void norm(const AlignedArray<float>& weight, const float* x, const Activation& out, ThreadPool& pool) const;
  // q, k, v of the input that `produce` gives; rotated, and k and v written into their pages
  void project_qkv(const LinearGroup& qkv, const DecoderLayer& layer, const LayerRows& r, const PagedKvLayer& kv,
                   Produce produce, ThreadPool& pool);
  void attend(const DecoderLayer& layer, const LayerRows& r, const PagedKvLayer& kv, const Activation& out,
              ThreadPool& pool) const;
  void project_gate_up(const LinearGroup& gate_up, int64_t rows, Produce produce, ThreadPool& pool);
  void silu_gate(const Activation& out, ThreadPool& pool) const;
  // x += group(input): o and down
  void add_projection(const LinearGroup& group, const LayerRows& r, Produce produce, ThreadPool& pool);

  // Experts, where a layer has them: route(); for each expert that rows pass, in this order, project_gate_up() of
  // expert_rows(), silu_gate() and add_expert(); add_experts(). x does not change before the last.
  void route(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool);
  const Routing& routing() const { return routing_; }
  // out = the rows of norm(x) that pass an expert
  void expert_rows(int64_t expert, const Activation& out, ThreadPool& pool);
  // sum[row] += weight x down(input), input: as many rows as pass the expert
  void add_expert(const LinearGroup& down, int64_t expert, Produce produce, ThreadPool& pool);
  // x += sum
  void add_experts(const LayerRows& r, ThreadPool& pool) const;

  // output = group(input), output [rows, stride]: the head
  void project(const LinearGroup& group, int64_t rows, Produce produce, float* output, int64_t stride,
               ThreadPool& pool);
  // The head's highest logits; search.input is what `produce` gives.
  void find_highest(GreedyHead& head, GreedySearch search, Produce produce, ThreadPool& pool);

  // [rows, q | k | v] with q and k rotated, after project_qkv
  const float* qkv_rows() const { return wide_.data(); }
  int64_t qkv_stride() const { return wide_stride_; }
  const ProducerKernels& producers() const { return *producers_; }
  size_t scratch_bytes() const { return scratch_->total_bytes(); }

 private:
  void dense_block(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool);
  void experts_block(const DecoderLayer& layer, const LayerRows& r, ThreadPool& pool);

  const ModelConfig* config_;
  const ProducerKernels* producers_;
  std::unique_ptr<RopeCache> rope_;
  AlignedArray<float> wide_;
  Routing routing_;
  AlignedArray<float> normed_, gathered_, scores_, expert_out_, sum_;  // [rows, hidden_size]; scores: [rows, experts]
  int64_t wide_stride_ = 0;
  ActivationBuffer activation_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace octavo
