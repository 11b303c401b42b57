// One pass of the calibration samples through the model, layer by layer: of the model one layer's weights are in
// memory, of the activations one layer's input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "models/layers/decoder_layer.h"
#include "quantize/calibration_data.h"
#include "quantize/sample_store.h"

namespace octavo {

// Who watches a pass, and gives it the weights to go on with.
class PassVisitor {
 public:
  virtual ~PassVisitor() = default;

  // Whether anything of this layer is to be seen. If not, its groups are asked for and it is run through; the head
  // (-1) is then left out.
  virtual bool watches(int layer) const = 0;
  // Whether the layer's source is wanted first: every sample runs through its weights in BF16 (where the checkpoint
  // does not say otherwise) before anything else is seen of it, and see_source() is called instead of see().
  virtual bool fits(int) const { return false; }
  virtual Result<void> see_source(const LinearPlace&, int64_t, const Activation&) { return {}; }
  // Every sample was seen; what is read of the checkpoint from now on may be other tensors.
  virtual Result<void> fit(int) { return {}; }
  // The rows that enter a group: plain BF16, or FP32 where the plan's activations are finer or scaled.
  // Of an expert those that pass it; of one that no token of the set passes, all rows of the layer.
  virtual Result<void> see(const LinearPlace& place, int64_t sample, const Activation& rows) = 0;
  // Bytes that the visitor holds of a place between the first see() and group(): experts are seen as many at a time as
  // there is memory for.
  virtual int64_t bytes_seen(const LinearPlace&) const { return 0; }
  // How many tokens of the set pass each expert, before anything is seen of them.
  virtual Result<void> see_experts(int, std::span<const int64_t>) { return {}; }
  // Keys (rotated) and values of a sample: [rows, num_kv_heads x head_dim], `stride` floats between the rows.
  virtual Result<void> see_kv(int layer, int64_t sample, int64_t rows, const float* k, const float* v,
                              int64_t stride) = 0;
  // Every sample was seen (or the layer is not watched): the group that all samples run through now. For the head the
  // group is not run.
  virtual Result<LinearGroup> group(const LinearPlace& place, const LayerLoader& loader) = 0;
};

struct PassOptions {
  Isa isa = Isa::kReference;
  int64_t memory_limit = 0;            // bytes of activations held; beyond it they are spilled
  std::filesystem::path spill_folder;  // where to
  int64_t layers = -1;                 // stop after this many; -1: all
  bool head = true;                    // then go on to the head
  std::function<void(double done, double total, std::string_view detail)> progress;
  // Called where the set of buffers changes, with the bytes of activations held in memory until then (of all samples).
  std::function<void(int64_t held)> phase;
  std::function<void(int layer, double fit_seconds)> layer_done;  // fit_seconds() until then
};

class CalibrationPass {
 public:
  // `plan`: the formats that layers run in. Checkpoint, plan and samples outlive the pass.
  CalibrationPass(const Checkpoint& checkpoint, const PrecisionPlan& plan, const CalibrationSet& samples,
                  PassOptions options, ThreadPool& pool);

  // Within a layer, o_proj sees what the group given for q, k and v made, and so on: each group's input comes from the
  // groups given before it. What nobody watches any more is left out. Errors: the visitor's, a disk that is full,
  // damaged weights.
  Result<void> run(PassVisitor& visitor);
  // Of run(), on samples through the layers' sources, and how many tokens of the set pass there at most.
  double fit_seconds() const { return fit_seconds_; }
  static int64_t fit_tokens(const CalibrationSet& samples);

  // Bytes of activations that a pass holds at most: the residual stream, and what one step hands on to the next. Each
  // is spilled by itself where it passes half of the limit.
  struct Held {
    int64_t residual = 0, handed_on = 0;
  };
  static Held held(const ModelConfig& config, const PrecisionPlan& plan, const CalibrationSet& samples);

 private:
  using EachSample = FunctionRef<Result<void>(int64_t sample, const LayerRows& rows)>;

  Result<void> prepare();
  Result<void> each_sample(bool changes_x, std::string_view what, EachSample body, int64_t most = INT64_MAX);
  void end_phase() const;
  int64_t walks(int layer, const PassVisitor& visitor) const;
  Result<void> fit_steps(int index, PassVisitor& visitor);
  Result<void> run_layer(int index, PassVisitor& visitor);
  Result<void> run_through(int index, PassVisitor& visitor);
  Result<void> attention_steps(int index, DecoderLayer& layer, PassVisitor& visitor);
  Result<void> dense_steps(int index, DecoderLayer& layer, PassVisitor& visitor);
  Result<void> add_attention(int index, const DecoderLayer& layer, int64_t sample, const LayerRows& r);
  // calibration_experts.cc; `places`: of some or all of the layer's experts
  Result<void> experts_steps(int index, DecoderLayer& layer, PassVisitor& visitor);
  Result<void> count_experts(int index, DecoderLayer& layer, PassVisitor& visitor);
  Result<void> see_experts_in(int index, const DecoderLayer& layer, std::span<const LinearPlace> places,
                              PassVisitor& visitor);
  Result<void> hold_experts(int index, const DecoderLayer& layer, std::span<const LinearPlace> places);
  Result<void> see_experts_between(int index, const DecoderLayer& layer, std::span<const LinearPlace> all,
                                   std::span<const LinearPlace> places, PassVisitor& visitor);
  Result<void> add_experts(int index, const DecoderLayer& layer, std::span<const LinearPlace> places);
  Activation held_expert(const LinearPlace& place, std::byte*& slab) const;
  Result<void> see_head(PassVisitor& visitor);
  void hand_on(const Activation& held, const Activation& out);
  Result<void> make_held(int64_t row_bytes);
  int64_t widest_row(std::span<const LinearPlace> places) const;
  Activation held_rows(const LinearPlace& place, int64_t rows, std::byte* memory) const;
  ElementType held_element(const LinearPlace& place) const;
  PagedKvLayer fresh_kv(const KvPlan& plan, int64_t tokens);

  const Checkpoint& checkpoint_;
  const PrecisionPlan& plan_;
  PrecisionPlan wide_plan_;
  const CalibrationSet& set_;
  PassOptions options_;
  ThreadPool& pool_;
  LoadReport report_;
  LayerLoader loader_, wide_loader_;
  LayerRunner runner_;
  int64_t longest_ = 0;
  SampleStore x_, held_;
  ActivationBuffer seen_, attended_;
  std::map<LinearPlace, ElementType> held_elements_;
  std::vector<int64_t> expert_tokens_;  // of the layer at work
  AlignedArray<float> fit_x_;
  AlignedBytes kv_memory_;
  std::vector<int32_t> page_table_;
  double done_ = 0, total_ = 0;  // samples
  double fit_seconds_ = 0;
};

}  // namespace octavo
