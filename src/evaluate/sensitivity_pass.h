// The base model over the windows of a text, layer by layer, and changes of one layer run from there to the logits.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "evaluate/compare.h"
#include "kv_cache/page_pool.h"
#include "models/layers/decoder_layer.h"
#include "quantize/sample_store.h"

namespace octavo {

// One part of one layer in other formats, and what was measured of it.
struct LayerChange {
  std::string name;  // for errors: "layer 3 q_proj int4"
  // A role's linear layers: the groups that they belong to, with them lowered. One; of experts one each.
  std::vector<std::pair<LinearPlace, LinearGroup>> groups;
  // Or a side of the cache: the layer's formats, and the layer for them but for its groups.
  std::optional<KvPlan> kv;
  DecoderLayer frame;

  CompareTotals totals;
  double output_error = 0;  // sum over the tokens

  AlignedArray<float> x;            // [context, hidden_size], of the window at work
  std::vector<RowDivergence> rows;  // of the window at work
};

class SensitivityPass {
 public:
  struct Options {
    Isa isa = Isa::kReference;
    int64_t memory_limit = 0;
    std::filesystem::path spill_folder;
    std::function<void(double units)> progress;  // work done since the last call; a unit is a layer over a window
  };
  // Checkpoint, plan, windows and pool outlive the pass.
  SensitivityPass(const Checkpoint& checkpoint, const PrecisionPlan& base, const TextWindows& windows, Options options,
                  ThreadPool& pool);

  // Loads the base and runs it once. Afterwards the pass stands before layer 0.
  Result<void> prepare();
  double base_perplexity() const { return base_perplexity_; }

  // The change that makes `lowered` of the base's plan: the groups of `role` in `layer`, or (no role) its KV formats.
  Result<LayerChange> load(const PrecisionPlan& lowered, int layer, std::optional<Role> role) const;
  // Runs the layer that the pass stands before; measure() can then be asked for it, or the head after the last one.
  Result<void> run_base_layer();
  // Changes of the layer that was run last (of the head: after the last layer).
  Result<void> measure(std::span<LayerChange> changes);
  Result<void> measure_head(std::span<LayerChange> changes);
  // On to the next layer.
  void step();

  // Work units that a change takes: of its layer and of what follows, and of the head.
  double cost(int layer) const;

 private:
  Result<void> first_pass();
  Result<void> base_rows(int64_t window, const float* x, std::vector<double>& means);
  void run_layer(const DecoderLayer& layer, const KvPlan& kv, float* x);
  void run_changed(LayerChange& change);
  void add_output_error(LayerChange& change, const float* lowered, const float* base, int64_t rows, int64_t cols,
                        int64_t stride) const;
  Result<void> compare_window(int64_t window, std::span<LayerChange> changes);
  float* logits(const LinearGroup& head, const float* x, int64_t rows, AlignedArray<float>& memory);
  PagedKvLayer fresh_cache(const DecoderLayer& layer, const KvPlan& kv);
  void worked(double units) const;

  const Checkpoint& checkpoint_;
  const PrecisionPlan& plan_;
  const TextWindows& windows_;
  Options options_;
  ThreadPool& pool_;
  const ModelConfig& config_;
  mutable LoadReport report_;
  LayerLoader loader_;
  LayerRunner runner_;
  std::vector<DecoderLayer> layers_;
  AlignedArray<float> final_norm_;
  LinearGroup head_;
  SampleStore entry_, output_, final_;  // of the layer at work: a window's hidden states before and after; after all
  int layer_ = 0;
  double base_perplexity_ = 0;

  struct Cache {
    KvPlan kv;
    std::unique_ptr<PagePool> pages;
  };
  std::vector<Cache> caches_;  // one per pair of formats
  std::vector<int32_t> page_table_;
  AlignedArray<float> base_logits_, logits_;
  int64_t logits_stride_ = 0;
};

}  // namespace octavo
