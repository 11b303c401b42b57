// KV calibration: a pass over text with the finished weights that finds the ranges of keys and values, the query
// temperature, and what the cache that is asked for does to them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/kv_calibration.h"
#include "quantize/calibration_pass.h"
#include "quantize/estimator.h"
#include "quantize/statistics.h"

namespace octavo {

struct KvCalibrateOptions {
  std::string kv;  // precision/kv_format.h
  bool refit_temperature = false;
};

// What the stored scales do to the calibration's keys and values, as shares of them. Keys with channel scales are not
// counted: their ranges are the extremes.
struct KvSideReport {
  double saturated = 0, underflowed = 0;
  int layer = -1;  // where `saturated` is highest
};
struct KvReport {
  std::string kv;
  int64_t tokens = 0;                // whose keys and values were looked at, in each lowered layer
  std::optional<KvSideReport> k, v;  // empty where scales are computed at run time
  // With the temperature refit, per layer: mean entropy (nats) of the attention with a BF16 cache, with the cache
  // asked for, and the factor on the queries that brings the second to the first.
  struct Entropy {
    double bf16 = 0, lowered = 0;
    float temperature = 1;
  };
  std::vector<Entropy> entropies;
  std::vector<std::string> notes;
};

// Error: no sample is longer than the tokens that the plan keeps wide, so that some layer would see nothing.
Result<void> check_kv_samples(const PrecisionPlan& plan, const KvCalibrateOptions& options,
                              const CalibrationSet& samples);

// A plan's KV cache with scales that are computed as tokens are written: for running a model that has no others yet.
void compute_kv_scales(PrecisionPlan& plan);

class KvCalibrator final : public PassVisitor {
 public:
  using Groups = std::function<Result<LinearGroup>(const LinearPlace& place, const LayerLoader& loader)>;
  // `plan`: with the KV cache asked for. `groups` gives the weights that the pass goes on with. `samples`: those of the
  // pass. All but `groups` outlive it.
  KvCalibrator(const ModelConfig& config, const PrecisionPlan& plan, const KvCalibrateOptions& options,
               const EstimatorOptions& estimator, const CalibrationSet& samples, Groups groups, ThreadPool& pool);

  // Bytes that the temperature refit holds of a layer: keys and queries of a few samples, and their scores.
  static int64_t refit_bytes(const ModelConfig& config, const CalibrationSet& samples);

  const KvCalibration& calibration() const { return calibration_; }
  const KvReport& report() const { return report_; }

  bool watches(int layer) const override { return layer >= 0; }
  Result<void> see(const LinearPlace&, int64_t, const Activation&) override { return {}; }
  Result<void> see_kv(int layer, int64_t sample, int64_t rows, const float* k, const float* v, int64_t stride) override;
  Result<LinearGroup> group(const LinearPlace& place, const LayerLoader& loader) override;

 private:
  // What the temperature is fitted on: keys of a whole sample, and a few of its queries.
  struct Held {
    int64_t rows = 0;
    std::vector<float> keys;         // [rows, kv_size]
    std::vector<int64_t> positions;  // of the queries
    std::vector<float> queries;      // [positions, q_size]
  };
  void hold(int64_t rows, const float* q, const float* k, int64_t stride);
  Result<void> finish_layer(int layer);
  KvReport::Entropy fit_temperature(int layer) const;

  const ModelConfig& config_;
  const PrecisionPlan& plan_;
  const KvCalibrateOptions& options_;
  const EstimatorOptions& estimator_;
  const CalibrationSet& samples_;
  Groups groups_;
  ThreadPool& pool_;
  std::vector<ValueStatistics> k_seen_, v_seen_;  // of the layer at work, per KV head
  std::vector<float> k_min_, k_max_;
  std::vector<Held> held_;
  KvCalibration calibration_;
  KvReport report_;
};

}  // namespace octavo
