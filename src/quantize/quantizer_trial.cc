// A trial of a quantization, for a dry run: a part of everything, timed.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "quantize/quantizer.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTimedBytes = int64_t{32} << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A pass whose last layer, or head, is timed. What comes before it is done once, not for each layer: the embedding,
// and memory that is touched for the first time.
class TimedPass {
 public:
  // `begins` is called when the clock starts, with the seconds of fitting that were before.
  TimedPass(const PassOptions& pass, int64_t layers, bool head, std::function<void(double fit)> begins)
      : options_(pass), phase_(pass.phase), begins_(std::move(begins)) {
    options_.layers = layers;
    options_.head = head;
    options_.phase = [this](int64_t held) {
      if (!begun_) begin(0);
      phase_(held);
    };
    options_.layer_done = [this, layers](int layer, double fit) {
      if (layer == layers - 2) begin(fit);
    };
  }
  TimedPass(const TimedPass&) = delete;
  TimedPass& operator=(const TimedPass&) = delete;

  const PassOptions& options() const { return options_; }
  double seconds() const { return begun_ ? seconds_since(*begun_) : 0; }

 private:
  void begin(double fit) {
    begun_ = Clock::now();
    begins_(fit);
  }

  PassOptions options_;
  std::function<void(int64_t held)> phase_;
  std::function<void(double fit)> begins_;
  std::optional<Clock::time_point> begun_;
};

}  // namespace

Result<TrialTimes> Quantizer::try_out(const std::filesystem::path& out, const CalibrationSet& few, int64_t memory_limit,
                                      const std::function<void(int64_t held)>& phase) {
  std::filesystem::path place = out.has_filename() ? out : out.parent_path();
  place += ".dry-run";
  OCTAVO_ASSIGN(WorkFolder work, WorkFolder::open_empty(place));
  work_.emplace(std::move(work));
  calibrate_.memory_limit = memory_limit;
  calibrate_.progress = {};
  TrialTimes times;
  const auto run = [&]() -> Result<void> {
    if (samples_) OCTAVO_TRY(try_calibration(few, {.phase = phase}, times));
    if (!jobs_.empty()) {
      OCTAVO_ASSIGN(times.write_layer, time_layer(0));
      if (jobs_.back().module.role == Role::kHead) {
        OCTAVO_ASSIGN(times.write_head, time_layer(-1));
      }
    }
    OCTAVO_ASSIGN(times.copy, time_copy());
    phase(0);
    return {};
  };
  Result<void> done = run();
  work_->remove();
  if (!done) return fail(std::move(done).error());
  return times;
}

// The second layer is the one that is timed.
int64_t Quantizer::trial_layers() const {
  return std::min<int64_t>(2, checkpoint_.config().num_layers);
}

Result<void> Quantizer::try_calibration(const CalibrationSet& few, const PassOptions& pass, TrialTimes& times) {
  times.tokens = few.tokens();
  times.fit_tokens = CalibrationPass::fit_tokens(few);
  if (jobs_.empty())
    return try_kv(
        few, pass, [](const LinearPlace& place, const LayerLoader& loader) { return loader.group(place); }, times);
  const std::vector<QuantizeJob> jobs(jobs_.begin(), jobs_.end());
  Calibrator calibrator(checkpoint_, summary_.plan, jobs, calibrate_, *work_, pool_, source_.transform());
  double weights_before = 0, fit_before = 0;
  const auto begins = [&](double fit) {
    weights_before = calibrator.weight_seconds();
    fit_before = fit;
  };
  const TimedPass one(pass, trial_layers(), false, begins), head(pass, 0, true, begins);
  OCTAVO_TRY(calibrator.run(few, one.options()));
  times.weights = calibrator.weight_seconds() - weights_before;
  times.fit = calibrator.fit_seconds() - fit_before;
  times.samples = one.seconds() - times.weights - times.fit;
  begins(0);  // a head that stays wide is not run at all
  OCTAVO_TRY(calibrator.run(few, head.options()));
  times.head_weights = calibrator.weight_seconds() - weights_before;
  times.head_samples = head.seconds() - times.head_weights;
  if (!options_.kv) return {};
  return try_kv(
      few, pass, [&](const LinearPlace& place, const LayerLoader& loader) { return calibrator.group(place, loader); },
      times);
}

Result<void> Quantizer::try_kv(const CalibrationSet& few, const PassOptions& pass, const KvCalibrator::Groups& groups,
                               TrialTimes& times) {
  const TimedPass one(pass, trial_layers(), false, [&](double) { times.kv_weights = 0; });
  const auto timed = [&](const LinearPlace& place, const LayerLoader& loader) {
    const auto start = Clock::now();
    Result<LinearGroup> group = groups(place, loader);
    times.kv_weights += seconds_since(start);
    return group;
  };
  OCTAVO_TRY(kv_pass(few, timed, one.options()));
  times.kv_samples = one.seconds() - times.kv_weights;
  return {};
}

// One layer's weights (-1: the head's) as they go into the output, synced.
Result<double> Quantizer::time_layer(int layer) {
  const auto start = Clock::now();
  const std::vector<WeightJob> all = jobs_;
  std::erase_if(jobs_, [&](const WeightJob& job) { return job.module.layer != layer; });
  layout_.clear();
  for (const WeightJob& job : jobs_) lay_out_job(job, *checkpoint_.tensors().find(job.module.name + ".weight"));
  const auto write = [&]() -> Result<void> {
    OCTAVO_ASSIGN(ShardedWriter writer, ShardedWriter::create(work_->path(), layout_, options_.shard_bytes));
    if (samples_) {
      OCTAVO_TRY(take_calibrated(writer));
    } else {
      for (const WeightJob& job : jobs_) OCTAVO_TRY(quantize(job, writer));
    }
    return writer.commit();
  };
  const Result<void> written = write();
  jobs_ = all;
  if (!written) return fail(written.error());
  return seconds_since(start);
}

// Of one byte: the first rows of the largest tensor that is copied.
Result<double> Quantizer::time_copy() {
  const auto largest = std::max_element(kept_.begin(), kept_.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->stored_bytes < b->stored_bytes;
  });
  if (largest == kept_.end() || (*largest)->stored_bytes == 0) return 0.0;
  const TensorEntry& entry = **largest;
  TensorToWrite tensor{entry.name, *element_from_safetensors(entry.stored_type), entry.shape};
  if (entry.shape.size() == 2)
    tensor.shape[0] = std::clamp<int64_t>(kTimedBytes * entry.shape[0] / entry.stored_bytes, 1, entry.shape[0]);
  const auto start = Clock::now();
  OCTAVO_ASSIGN(ShardedWriter writer, ShardedWriter::create(work_->path(), {tensor}, options_.shard_bytes));
  OCTAVO_TRY(copy(entry, writer, entry.shape.size() == 2 ? tensor.shape[0] : INT64_MAX));
  OCTAVO_TRY(writer.commit());
  return seconds_since(start) / static_cast<double>(data_bytes(tensor));
}

}  // namespace octavo
