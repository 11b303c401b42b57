// The quantizer behind quantize_checkpoint(): plans what becomes of each tensor, rounds or takes calibrated weights,
// and writes the folder. Include only in .cc files.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "formats/quantize_rows.h"
#include "parallel/thread_pool.h"
#include "quantize/calibrate.h"
#include "quantize/quantization_config.h"
#include "quantize/quantize_checkpoint.h"
#include "quantize/sharded_writer.h"
#include "quantize/written_weight.h"

namespace octavo {

// One weight to quantize, and the tensor of its scales.
struct WeightJob : QuantizeJob {
  ScaleTensor scale_tensor;
  std::optional<ScaleTensor> input_scale;  // static activations
};

// What is quantized: a checkpoint, through the transforms that the options ask for.
class QuantizeSource {
 public:
  // `checkpoint` outlives it. Errors: a checkpoint that is quantized already, or rotated and to be
  // rotated again; transforms that do not go with the other options.
  static Result<QuantizeSource> open(const Checkpoint& checkpoint, const QuantizeOptions& options);

  const Checkpoint& checkpoint() const { return transformed_ ? transformed_->checkpoint : *original_; }
  const Checkpoint& original() const { return *original_; }
  WeightTransform* transform() const { return transformed_ ? transformed_->transform : nullptr; }

 private:
  const Checkpoint* original_ = nullptr;
  std::optional<TransformedCheckpoint> transformed_;
};

class Quantizer {
 public:
  // `source` outlives it.
  Quantizer(const QuantizeSource& source, const QuantizeOptions& options,
            const std::function<void(const QuantizeProgress&)>& progress)
      : source_(source),
        checkpoint_(source.checkpoint()),
        options_(options),
        report_(progress),
        modules_(checkpoint_.config().linear_modules()) {}

  // Plan, dialect, and the tensors of the output.
  Result<void> prepare();
  // The calibration pass, where one is asked for.
  Result<void> calibrate(const std::filesystem::path& out);
  // Everything into the folder, still without its name.
  Result<void> write(const std::filesystem::path& folder);
  void remove_work();
  QuantizeSummary summary();
  int64_t bytes_after() const { return summary_.bytes_after; }
  const PrecisionPlan& plan() const { return summary_.plan; }
  std::vector<QuantizeJob> jobs() const { return {jobs_.begin(), jobs_.end()}; }
  ThreadPool& pool() { return pool_; }

 private:
  Result<void> plan_jobs();
  Result<void> plan_scales();
  Result<void> plan_outliers();
  Result<float> earlier_input_scale(const WeightJob& job);
  Result<void> lay_out();
  Result<void> copy(const TensorEntry& entry, ShardedWriter& writer);
  Result<void> copy_transformed(const TensorEntry& entry, ShardedWriter& writer);
  Result<RowsView> source_rows(const TensorEntry& entry, int64_t begin, int64_t end, std::vector<float>& buffer) const;
  Result<void> quantize(const WeightJob& job, ShardedWriter& writer);
  Result<void> quantize_packed(const WeightJob& job, ShardedWriter& writer);
  Result<void> write_packed(const WeightJob& job, const MatrixView& weight, ShardedWriter& writer);
  Result<void> write_input_scale(const WeightJob& job, float scale, ShardedWriter& writer);
  Result<void> take_calibrated(ShardedWriter& writer);
  Result<void> plan_kv();
  Result<void> calibrate_kv(const CalibrationSet& samples, const KvCalibrator::Groups& groups);
  Result<void> write_kv(const std::filesystem::path& folder, ShardedWriter& writer) const;
  Result<void> write_calibration(const std::filesystem::path& folder) const;
  Result<RoundingError> quantize_slab(const WeightJob& job, const TensorEntry& entry, int64_t begin, int64_t end,
                                      std::span<float> scales, ShardedWriter& writer);
  Result<float> shared_amax(const WeightJob& job);
  Result<void> write_config(const std::filesystem::path& folder) const;
  Result<void> over_slabs(const TensorEntry& entry, int64_t slab_rows,
                          FunctionRef<Result<void>(int64_t begin, int64_t end)> body);
  void done(int64_t bytes, std::string_view tensor);

  const QuantizeSource& source_;
  const Checkpoint& checkpoint_;  // as it is before rounding
  const QuantizeOptions& options_;
  const std::function<void(const QuantizeProgress&)>& report_;
  std::vector<LinearModule> modules_;
  std::vector<WeightJob> jobs_;
  std::vector<const TensorEntry*> kept_;
  std::vector<TensorToWrite> layout_;
  std::map<std::string, float> shared_amax_;  // of a fused group
  CalibrateOptions calibrate_;
  std::optional<WorkFolder> work_;
  StatisticsMap statistics_;
  std::optional<KvCalibration> kv_calibration_;
  std::map<std::string, float> input_scales_;  // by module: known before anything is read
  QuantizeSummary summary_;
  QuantizeProgress progress_;
  std::mutex mutex_;
  ThreadPool pool_{std::max(1, options_.threads)};
};

}  // namespace octavo
