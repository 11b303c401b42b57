// Calibrated quantization of a model's linear layers: a pass over calibration text gives each layer its statistics,
// activation scales and, by GPTQ, its weights. Finished layers lie in a work folder.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/isa.h"
#include "quantize/calibration_data.h"
#include "quantize/calibration_pass.h"
#include "quantize/estimator.h"
#include "quantize/gptq.h"
#include "quantize/hessian.h"
#include "quantize/statistics.h"
#include "quantize/weight_transform.h"
#include "quantize/work_folder.h"

namespace octavo {

enum class Rounding : uint8_t { kNearest, kGptq };

struct CalibrateOptions {
  CalibrationDataOptions data;
  Rounding rounding = Rounding::kGptq;
  GptqOptions gptq;
  // Layers are calibrated behind activations and KV cache in the plan's own formats, or in BF16.
  bool planned_activations = true;
  EstimatorOptions estimator;                 // of static activation scales
  std::map<std::string, float> input_scales;  // by module: kept, not estimated
  int64_t memory_limit = int64_t{1} << 30;    // of activations held
  Isa isa = Isa::kReference;
  std::function<void(double done, double total, std::string_view detail)> progress;
};

// A weight to quantize.
struct QuantizeJob {
  LinearModule module;
  TensorFormat format;
  std::string fused;  // modules of the same text and format share a scale per tensor, or the outer scale
};

// The largest magnitude of all the weights that share a scale with a job's: found once.
class SharedAmax {
 public:
  // amax_of(job) -> Result<float>
  template <class Jobs, class AmaxOf>
  Result<float> of(const Jobs& jobs, const QuantizeJob& job, AmaxOf amax_of) {
    if (const auto known = known_.find(job.fused); known != known_.end()) return known->second;
    float amax = 0;
    for (const auto& other : jobs) {
      if (other.fused != job.fused || other.format != job.format) continue;
      OCTAVO_ASSIGN(const float own, amax_of(other));
      amax = std::max(amax, own);
    }
    return known_[job.fused] = amax;
  }

 private:
  std::map<std::string, float> known_;
};

// The formats that layers run in while they are calibrated: weights as planned where a fast kernel takes them, else the
// same values in FP32; activations as the options say.
PrecisionPlan running_plan(const PrecisionPlan& plan, const std::vector<LinearModule>& modules,
                           const CalibrateOptions& options);

// `transform`: what `checkpoint` reads through, or nullptr. Its factors, where it has some, are fitted layer by layer.
class Calibrator final : public PassVisitor {
 public:
  Calibrator(const Checkpoint& checkpoint, const PrecisionPlan& plan, const std::vector<QuantizeJob>& jobs,
             const CalibrateOptions& options, const WorkFolder& folder, ThreadPool& pool,
             WeightTransform* transform = nullptr);

  // Every layer that the work folder lacks. Afterwards it has them all. `pass`: what part of the model, and its phases;
  // the rest of it is set here.
  Result<void> run(const CalibrationSet& samples, PassOptions pass = {});
  // Seconds spent on weights, not on samples: factoring and rounding; and on samples for factors.
  double weight_seconds() const { return weight_seconds_; }
  double fit_seconds() const { return fit_seconds_; }

  // Everything that decides the bytes of the result, as text.
  static std::string fingerprint(const Checkpoint& checkpoint, const PrecisionPlan& plan,
                                 const CalibrateOptions& options, const CalibrationSet& samples,
                                 const WeightTransform* transform = nullptr);

  // Of every layer, also of those that an earlier run finished.
  Result<StatisticsMap> statistics() const;
  Result<std::vector<std::string>> notes() const;
  // Tokens by layer and expert; empty for dense layers.
  Result<std::vector<std::vector<int64_t>>> expert_tokens() const;

  bool watches(int layer) const override;
  bool fits(int layer) const override;
  Result<void> see_source(const LinearPlace& place, int64_t sample, const Activation& rows) override;
  Result<void> fit(int layer) override;
  int64_t bytes_seen(const LinearPlace& place) const override;
  Result<void> see(const LinearPlace& place, int64_t sample, const Activation& rows) override;
  Result<void> see_experts(int layer, std::span<const int64_t> tokens) override;
  Result<void> see_kv(int layer, int64_t sample, int64_t rows, const float* k, const float* v, int64_t stride) override;
  Result<LinearGroup> group(const LinearPlace& place, const LayerLoader& loader) override;

 private:
  Result<void> fit_place(const LinearPlace& place);
  Result<void> load_factors();
  LayerFactors layer_factors(int layer) const;
  bool needs_hessian(const LinearPlace& place) const;
  Result<void> quantize_group(const LinearPlace& place);
  float input_scale(const LinearPlace& place, const TensorFormat& format);
  Result<QuantizedLinear> quantize_module(const QuantizeJob& job, const GptqSolver* solver,
                                          std::span<const float> importance, const std::vector<int32_t>& outliers);
  Result<std::vector<float>> read_weight(const LinearModule& module) const;
  Result<float> shared_amax(const QuantizeJob& job, const std::vector<int32_t>& outliers);
  Result<void> load_finished(int layer);
  Result<StoredLinear> source(const LinearModule& module);
  const std::vector<const QuantizeJob*>& jobs_of(const LinearPlace& place) const;

  const Checkpoint& checkpoint_;
  const PrecisionPlan& plan_;
  PrecisionPlan run_plan_;
  const std::vector<QuantizeJob>& jobs_;
  const CalibrateOptions& options_;
  const WorkFolder& folder_;
  ThreadPool& pool_;
  WeightTransform* const transform_;

  std::map<LinearPlace, std::vector<const QuantizeJob*>> jobs_of_;
  HessianWork hessian_work_;
  std::map<LinearPlace, std::unique_ptr<Hessian>> hessians_;  // of the groups that are being seen
  StatisticsMap statistics_;                                  // of the layer that is being seen
  std::vector<int64_t> expert_tokens_;                        // of the same
  struct SourceActivations {
    std::vector<float> amax;
    std::unique_ptr<Hessian> hessian;  // for AWQ
  };
  std::map<LinearInput, SourceActivations> source_seen_;  // of the layer that is being fitted
  static constexpr int kNoLayer = -2;
  int loaded_layer_ = kNoLayer;                 // the finished layer whose weights weights_ holds
  QuantizedLayer weights_;                      // of the layer at work
  std::map<std::string, TensorEntry> entries_;  // views of weights_, as a checkpoint would have them
  std::map<std::string, std::vector<float>> wide_;
  SharedAmax shared_amax_;
  std::vector<std::string> notes_;  // of the layer at work
  const CalibrationSet* samples_ = nullptr;
  double weight_seconds_ = 0, fit_seconds_ = 0;
};

}  // namespace octavo
