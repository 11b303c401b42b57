// The calibrated way: a pass over text into the work folder, and from there into the output.
#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "checkpoint/outliers.h"
#include "quantize/quantizer.h"
#include "quantize/statistics_file.h"

namespace octavo {

Result<void> Quantizer::calibrate(const std::filesystem::path& out) {
  if (options_.earlier && options_.earlier->plan && !options_.calibrate)
    summary_.notes.push_back("activation drift was not checked: give some text with --calibrate");
  if (!options_.calibrate) return {};
  OCTAVO_ASSIGN(const CalibrationSet samples,
                read_calibration_set(checkpoint_.path(), checkpoint_.config(), options_.calibrate->data));
  for (const std::string& note : samples.notes) summary_.notes.push_back(note);
  summary_.calibration_files = samples.files;
  summary_.coverage = samples.coverage();
  calibrate_ = *options_.calibrate;
  calibrate_.input_scales = input_scales_;
  const std::string fingerprint =
      Calibrator::fingerprint(checkpoint_, summary_.plan, calibrate_, samples, source_.transform());
  OCTAVO_ASSIGN(WorkFolder work, WorkFolder::open(out, fingerprint));
  work_.emplace(std::move(work));
  if (jobs_.empty())
    return calibrate_kv(
        samples, [](int layer, LinearInput input, const LayerLoader& loader) { return loader.group(layer, input); });
  const std::vector<QuantizeJob> jobs(jobs_.begin(), jobs_.end());
  Calibrator calibrator(checkpoint_, summary_.plan, jobs, calibrate_, *work_, pool_, source_.transform());
  OCTAVO_TRY(calibrator.run(samples));
  for (const std::string& note : calibrator.notes()) summary_.notes.push_back(note);
  OCTAVO_ASSIGN(statistics_, calibrator.statistics());
  if (options_.earlier)
    for (std::string& note : drift_notes(options_.earlier->statistics, statistics_))
      summary_.notes.push_back(std::move(note));
  if (!options_.kv) return {};
  // The second time, every layer is finished: the calibrator gives the weights it has made.
  return calibrate_kv(samples, [&](int layer, LinearInput input, const LayerLoader& loader) {
    return calibrator.group(layer, input, loader);
  });
}

Result<void> Quantizer::write_calibration(const std::filesystem::path& folder) const {
  if (!work_ || jobs_.empty()) return {};
  OCTAVO_TRY(write_statistics(folder / kStatisticsName, statistics_));
  TensorFormat format = tensor_wide_format(ElementType::kE4m3);
  for (const WeightJob& job : jobs_)
    if (const TensorFormat& own = summary_.plan.linear(job.module.name).activation; own.scaled())
      format = tensor_wide_format(own.element);
  return write_text_file(
      folder / kStatisticsReportName,
      statistics_report(statistics_, format, options_.calibrate->estimator, options_.transforms.describe()));
}

namespace {

Result<void> write_outliers(const LinearModule& module, const StoredOutliers& outliers, ShardedWriter& writer) {
  if (outliers.channels.empty()) return {};
  std::vector<std::byte> weight(outliers.weight.size() * 2);
  for (size_t i = 0; i < outliers.weight.size(); ++i)
    store_element(ElementType::kBf16, weight.data(), i, outliers.weight[i]);
  OCTAVO_TRY(writer.write(outlier_channels_name(module), 0, std::as_bytes(std::span(outliers.channels))));
  return writer.write(outlier_weight_name(module), 0, weight);
}

}  // namespace

// The finished layers of the work folder into the output.
Result<void> Quantizer::take_calibrated(ShardedWriter& writer) {
  std::map<int, std::vector<const WeightJob*>> by_layer;
  for (const WeightJob& job : jobs_) by_layer[job.module.layer].push_back(&job);
  for (const auto& [layer, jobs] : by_layer) {
    std::map<std::string, std::pair<TensorFormat, Shape>> formats;
    for (const WeightJob* job : jobs) formats[job->module.name] = {job->format, {job->module.rows, job->module.cols}};
    OCTAVO_ASSIGN(const QuantizedLayer weights, work_->load(layer, formats));
    for (const WeightJob* job : jobs) {
      const QuantizedLinear& linear = weights.at(job->module.name);
      const std::string name = job->module.name + ".weight";
      if (stores_packed(summary_.dialect, job->format)) {
        OCTAVO_TRY(write_packed(*job, linear.matrix.view(), writer));
      } else {
        OCTAVO_TRY(writer.write(name, 0, {linear.matrix.codes.data(), linear.matrix.codes.size()}));
        OCTAVO_TRY(writer.write(job->scale_tensor.name, 0, std::as_bytes(std::span(linear.matrix.scales))));
      }
      OCTAVO_TRY(write_input_scale(*job, linear.input_scale, writer));
      OCTAVO_TRY(write_outliers(job->module, linear.outliers, writer));
      const double ratio = linear.rounding_objective > 0 ? linear.objective / linear.rounding_objective : 0;
      summary_.quantized.push_back({name, job->format, linear.error, ratio});
      done(checkpoint_.tensors().find(name)->stored_bytes, name);
    }
  }
  return {};
}

void Quantizer::remove_work() {
  if (work_) work_->remove();
}

}  // namespace octavo
