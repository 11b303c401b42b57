// Quantizes a checkpoint on disk into a new folder that other engines load: streamed, with bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "precision/plan.h"
#include "quantize/calibrate.h"
#include "quantize/kv_calibrator.h"
#include "quantize/scales_from.h"
#include "quantize/weight_transform.h"

namespace octavo {

struct QuantizeOptions {
  PlanRequest plan;     // a scheme, ignore and override rules, or a plan file
  std::string dialect;  // "fp8", "compressed-tensors", "modelopt", "gptq"; empty: the one that suits the scheme
  int threads = 1;
  int64_t shard_bytes = 5'000'000'000;  // model.safetensors becomes shards and an index beyond this
  std::optional<CalibrateOptions> calibrate;
  // An earlier quantization (--scales-from): a folder gives plan, dialect and static activation scales in place of
  // `plan`; a statistics file gives static activation scales by `estimator`.
  std::optional<EarlierScales> earlier;
  EstimatorOptions estimator;
  // The KV cache that the folder asks for, with values from calibration in octavo_kv.json; without it the cache is
  // chosen when the model runs. Goes with `calibrate`.
  std::optional<KvCalibrateOptions> kv;
  TransformOptions transforms;  // of the weights before they are rounded
  // Share of each layer's input channels, those of the largest calibrated amax, that keep BF16 weights and wide
  // activations (checkpoint/outliers.h); 0: none. Goes with `calibrate`.
  double outliers = 0;
};

struct QuantizeProgress {
  int64_t bytes_done = 0, bytes_total = 0;  // of the source's tensors
  std::string_view tensor;                  // the one at work
};

struct QuantizeSummary {
  struct Tensor {
    std::string name;
    TensorFormat format;
    double error;                // relative RMS: sqrt(sum (stored - source)^2 / sum source^2)
    double objective_ratio = 0;  // GPTQ: tr(dW H dW^T) as a share of what rounding gives; else 0
  };
  std::string dialect;
  PrecisionPlan plan;
  std::vector<Tensor> quantized;              // in order of use
  int64_t tensors_kept = 0;                   // copied as they were
  int64_t bytes_before = 0, bytes_after = 0;  // of tensor data
  double mean_error = 0, worst_error = 0;     // over `quantized`
  std::string worst_tensor;
  std::vector<std::string> copied_files;
  std::vector<CalibrationSet::File> calibration_files;
  std::vector<CalibrationSet::Coverage> coverage;   // of context lengths by the calibration's tokens
  std::vector<std::vector<int64_t>> expert_tokens;  // that passed each expert, by layer; dense layers are empty
  std::optional<KvReport> kv;                       // with QuantizeOptions::kv
  std::vector<std::string> notes;                   // rules that matched nothing, what other engines will refuse
};

// Writes model.safetensors (or shards), config.json with every key of the source's and a quantization_config, and
// copies of the tokenizer and the other companions. `out` appears when it is complete, or not at all.
//
// With one scale per tensor, q, k and v share it, and so do gate and up: engines that fuse them would otherwise
// requantize; the outer scale of NVFP4 likewise. Weights keep their names and scales are FP32, except where the dialect
// packs them (quantize/written_weight.h). A NaN or infinity in a weight to be quantized is an error.
//
// A KV cache of one stored E4M3 scale for K and one for V in each layer is also written as k_scale and v_scale tensors
// (and as kv_cache_scheme where the dialect has it), which other engines read. With it, a scheme may leave all weights
// wide.
//
// With `calibrate` the weights come from a pass over calibration text (quantize/calibrate.h). Its finished layers lie
// in OUT.work, which goes when `out` is complete: the same call after an end of any kind continues there, and gives the
// same bytes. `progress` is called from one thread at a time.
Result<QuantizeSummary> quantize_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                            const QuantizeOptions& options,
                                            const std::function<void(const QuantizeProgress&)>& progress = {});

}  // namespace octavo
