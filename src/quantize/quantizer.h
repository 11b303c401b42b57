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

// Bytes on the disk: of the output, of finished layers, of spilled activations (which go before the output is
// written); and what of it an earlier run has left there.
struct DiskNeed {
  int64_t output = 0, work = 0, spilled = 0, kept = 0;
  int64_t free_space() const { return std::max<int64_t>(work + std::max(output, spilled) - kept, 0); }
};

// What parts of a quantization took, for a dry run.
struct TrialTimes {
  int64_t tokens = 0, fit_tokens = 0;         // of the trial's samples; those that factors were fitted on
  double samples = 0, fit = 0, weights = 0;   // one layer's seconds: walks over samples, the fit's, GPTQ and loading
  double head_samples = 0, head_weights = 0;  // the head, where it is quantized
  double kv_samples = 0, kv_weights = 0;      // one layer of the KV pass
  double write_layer = 0, write_head = 0;     // into the output
  double copy = 0;                            // of one byte that is copied
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

  // Plan, dialect, and the tensors of the output; the calibration text, where some is given.
  Result<void> prepare();
  // The work folder of a calibrated run, locked. check_work() says what open_work() would, and changes nothing.
  Result<void> open_work(const std::filesystem::path& out);
  Result<void> check_work(const std::filesystem::path& out) const;
  // The calibration pass, where one is asked for.
  Result<void> calibrate();
  // Instead of calibrate() and write(): the first layer, the head and some of what is copied, on a few samples, in
  // OUT.dry-run.work, which is gone afterwards. `phase`: as PassOptions have it; it is called with 0 where no samples
  // are held. The object is of no use for anything else then.
  Result<TrialTimes> try_out(const std::filesystem::path& out, const CalibrationSet& few, int64_t memory_limit,
                             const std::function<void(int64_t held)>& phase);
  // Everything into the folder, still without its name.
  Result<void> write(const std::filesystem::path& folder);
  void remove_work();
  // The error of a run that ended: says what is kept of it. A work folder without a finished layer goes.
  Error ended(Error error);
  QuantizeSummary summary();
  int64_t bytes_after() const { return summary_.bytes_after; }
  int64_t copied_bytes() const;
  // Figures of text files and headers are estimates.
  Result<DiskNeed> disk_need(const std::filesystem::path& out) const;
  const std::optional<CalibrationSet>& samples() const { return samples_; }

 private:
  Result<void> check_tensors();
  std::string fingerprint() const;
  Result<void> read_samples();
  Result<void> plan_jobs();
  Result<void> plan_scales();
  Result<void> plan_outliers();
  Result<float> earlier_input_scale(const WeightJob& job);
  void lay_out_job(const WeightJob& job, const TensorEntry& entry);
  Result<void> lay_out();
  // Of a matrix, the first `rows` rows.
  Result<void> copy(const TensorEntry& entry, ShardedWriter& writer, int64_t rows = INT64_MAX);
  Result<void> copy_transformed(const TensorEntry& entry, ShardedWriter& writer, int64_t rows);
  Result<RowsView> source_rows(const TensorEntry& entry, int64_t begin, int64_t end, std::vector<float>& buffer) const;
  Result<void> quantize(const WeightJob& job, ShardedWriter& writer);
  Result<void> quantize_packed(const WeightJob& job, ShardedWriter& writer);
  Result<void> write_packed(const WeightJob& job, const MatrixView& weight, ShardedWriter& writer);
  Result<void> write_input_scale(const WeightJob& job, float scale, ShardedWriter& writer);
  Result<void> take_calibrated(ShardedWriter& writer);
  Result<void> plan_kv();
  void carry_kv();
  // Whether the output asks for a KV cache of its own.
  bool has_kv() const;
  Result<void> calibrate_kv(const KvCalibrator::Groups& groups);
  Result<KvCalibrator> kv_pass(const CalibrationSet& samples, const KvCalibrator::Groups& groups, PassOptions options);
  int64_t trial_layers() const;
  Result<void> try_calibration(const CalibrationSet& few, const PassOptions& pass, TrialTimes& times);
  Result<void> try_kv(const CalibrationSet& few, const PassOptions& pass, const KvCalibrator::Groups& groups,
                      TrialTimes& times);
  Result<double> time_layer(int layer);
  Result<double> time_copy();
  Result<void> write_kv(const std::filesystem::path& folder, ShardedWriter& writer) const;
  Result<void> write_calibration(const std::filesystem::path& folder) const;
  std::map<std::string, TensorFormat> place_formats() const;
  Result<RoundingError> quantize_slab(const WeightJob& job, const TensorEntry& entry, int64_t begin, int64_t end,
                                      std::span<float> scales, ShardedWriter& writer);
  Result<float> shared_amax(const WeightJob& job);
  Result<void> write_config(const std::filesystem::path& folder) const;
  void done(int64_t bytes, std::string_view tensor);

  const QuantizeSource& source_;
  const Checkpoint& checkpoint_;  // as it is before rounding
  const QuantizeOptions& options_;
  const std::function<void(const QuantizeProgress&)>& report_;
  std::vector<LinearModule> modules_;
  std::vector<WeightJob> jobs_;
  std::vector<const TensorEntry*> kept_;
  std::vector<TensorToWrite> layout_;
  SharedAmax shared_amax_;
  CalibrateOptions calibrate_;
  std::optional<CalibrationSet> samples_;
  std::optional<WorkFolder> work_;
  StatisticsMap statistics_;
  std::optional<KvCalibration> kv_calibration_;
  std::vector<KvScales> kv_scales_;            // per layer, to be written as tensors
  std::map<std::string, float> input_scales_;  // by module: known before anything is read
  QuantizeSummary summary_;
  QuantizeProgress progress_;
  std::mutex mutex_;
  ThreadPool pool_{std::max(1, options_.threads)};
};

}  // namespace octavo
