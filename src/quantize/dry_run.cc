#include "quantize/dry_run.h"

#include <algorithm>
#include <chrono>

#include "checkpoint/output_folder.h"
#include "quantize/quantizer.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a process of Octavo takes beside what is counted here: the program, tokenizer, buffers.
constexpr int64_t kProcessBytes = 90'000'000;

int64_t weights_bytes(const std::vector<QuantizeJob>& jobs) {
  int64_t bytes = 0;
  for (const QuantizeJob& job : jobs)
    bytes += job.format.element_bytes(job.module.rows, job.module.cols) +
             4 * job.format.scale_rows(job.module.rows) * job.format.scale_cols(job.module.cols);
  return bytes;
}

// The Hessian of the widest input in FP32 and FP64, its factors, and the largest weight as it is quantized.
int64_t solver_bytes(const std::vector<QuantizeJob>& jobs) {
  int64_t widest = 0, largest = 0;
  for (const QuantizeJob& job : jobs) {
    widest = std::max(widest, job.module.cols);
    largest = std::max(largest, job.module.rows * job.module.cols);
  }
  return widest * widest * (4 + 8 + 8 + 4) + largest * 4 * 2;
}

// What transforms take: one rotated tensor; of a layer that is fitted its weights in BF16, and AWQ's Hessians.
int64_t transform_bytes(const std::vector<QuantizeJob>& jobs, const TransformOptions& options) {
  int64_t largest = 0, layer = 0, hessians = 0;
  for (const QuantizeJob& job : jobs) {
    const int64_t size = job.module.rows * job.module.cols;
    if (job.module.role != Role::kHead) largest = std::max(largest, size);
    if (job.module.layer != jobs.front().module.layer) continue;
    layer += size * 2;
    if (job.module.role == Role::kQ || job.module.role == Role::kO || job.module.role == Role::kGate ||
        job.module.role == Role::kDown)
      hessians += job.module.cols * job.module.cols * 4;
  }
  return (options.rotate != TransformOptions::Rotate::kNone ? largest * 4 : 0) + (options.fitted() ? layer : 0) +
         (options.awq ? hessians : 0);
}

struct Probe {
  double sample_seconds = 0;  // a token of one layer
  double weight_seconds = 0;  // one layer
};

Result<Probe> probe(const QuantizeSource& source, Quantizer& quantizer, const CalibrationSet& samples,
                    const CalibrateOptions& options, const std::filesystem::path& out) {
  CalibrationSet few;
  few.samples.assign(samples.samples.begin(),
                     samples.samples.begin() + std::min<std::ptrdiff_t>(2, std::ssize(samples.samples)));
  std::filesystem::path place = out.has_filename() ? out : out.parent_path();
  place += ".dry-run";
  OCTAVO_ASSIGN(WorkFolder folder, WorkFolder::open(place, "dry run"));
  const std::vector<QuantizeJob> jobs = quantizer.jobs();
  CalibrateOptions quiet = options;
  quiet.progress = {};
  Calibrator calibrator(source.checkpoint(), quantizer.plan(), jobs, quiet, folder, quantizer.pool(),
                        source.transform());
  const auto start = Clock::now();
  const Result<void> ran = calibrator.run(few, 1);
  const double seconds = seconds_since(start);
  folder.remove();
  if (!ran) return fail(ran.error());
  return Probe{(seconds - calibrator.weight_seconds()) / static_cast<double>(few.tokens()),
               calibrator.weight_seconds()};
}

}  // namespace

Result<QuantizeEstimate> estimate_quantization(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                               const QuantizeOptions& options) {
  OCTAVO_TRY(check_output(checkpoint.path(), out));
  const std::function<void(const QuantizeProgress&)> silent;
  OCTAVO_ASSIGN(const QuantizeSource source, QuantizeSource::open(checkpoint, options));
  Quantizer quantizer(source, options, silent);
  OCTAVO_TRY(quantizer.prepare());
  QuantizeEstimate estimate;
  estimate.output_bytes = estimate.disk_bytes = quantizer.bytes_after();
  estimate.memory_bytes = kProcessBytes + transform_bytes(quantizer.jobs(), options.transforms);
  if (!options.calibrate) return estimate;
  const CalibrateOptions& calibrate = *options.calibrate;
  OCTAVO_ASSIGN(const CalibrationSet samples,
                read_calibration_set(checkpoint.path(), checkpoint.config(), calibrate.data));
  estimate.samples = static_cast<int64_t>(samples.samples.size());
  estimate.tokens = samples.tokens();
  const CalibrationPass::Held held = CalibrationPass::held(
      checkpoint.config(), running_plan(quantizer.plan(), checkpoint.config().linear_modules(), calibrate), samples);
  for (const int64_t bytes : {held.residual, held.handed_on})
    (bytes > calibrate.memory_limit / 2 ? estimate.spilled_bytes : estimate.memory_bytes) += bytes;
  if (calibrate.rounding == Rounding::kGptq) estimate.memory_bytes += solver_bytes(quantizer.jobs());
  estimate.disk_bytes += weights_bytes(quantizer.jobs()) + estimate.spilled_bytes;
  OCTAVO_ASSIGN(const Probe measured, probe(source, quantizer, samples, calibrate, out));
  estimate.seconds = static_cast<double>(checkpoint.config().num_layers) *
                     (measured.sample_seconds * static_cast<double>(estimate.tokens) + measured.weight_seconds);
  return estimate;
}

}  // namespace octavo
