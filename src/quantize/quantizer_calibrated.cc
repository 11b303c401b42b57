// The calibrated way: a pass over text into the work folder, and from there into the output.
#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "checkpoint/outliers.h"
#include "quantize/quantizer.h"
#include "quantize/statistics_file.h"

namespace octavo {

Result<void> Quantizer::read_samples() {
  if (options_.earlier && options_.earlier->plan && !options_.calibrate)
    summary_.notes.push_back("activation drift was not checked: give some text with --calibrate");
  if (!options_.calibrate) return {};
  OCTAVO_ASSIGN(samples_, read_calibration_set(checkpoint_.path(), checkpoint_.config(), options_.calibrate->data));
  if (options_.kv) OCTAVO_TRY(check_kv_samples(summary_.plan, *options_.kv, *samples_));
  for (const std::string& note : samples_->notes) summary_.notes.push_back(note);
  summary_.calibration_files = samples_->files;
  summary_.coverage = samples_->coverage();
  calibrate_ = *options_.calibrate;
  calibrate_.input_scales = input_scales_;
  return {};
}

std::string Quantizer::fingerprint() const {
  return Calibrator::fingerprint(checkpoint_, summary_.plan, calibrate_, *samples_, source_.transform());
}

Result<void> Quantizer::open_work(const std::filesystem::path& out) {
  if (!samples_) return {};
  OCTAVO_ASSIGN(WorkFolder work, WorkFolder::open(out, fingerprint()));
  work_.emplace(std::move(work));
  return {};
}

Result<void> Quantizer::check_work(const std::filesystem::path& out) const {
  if (!samples_) return {};
  return WorkFolder::check(out, fingerprint());
}

Error Quantizer::ended(Error error) {
  if (!work_) return error;
  const int finished = work_->finished();
  if (finished == 0) {
    work_->remove();
    return error;
  }
  error.remedy += fmt::format(
      "{}{} kept in {}: the same command goes on from there, or remove it", error.remedy.empty() ? "" : "; ",
      finished == 1 ? "1 finished layer is" : fmt::format("{} finished layers are", finished), work_->path().string());
  return error;
}

Result<void> Quantizer::calibrate() {
  if (!samples_) return {};
  if (jobs_.empty())
    return calibrate_kv([](const LinearPlace& place, const LayerLoader& loader) { return loader.group(place); });
  const std::vector<QuantizeJob> jobs(jobs_.begin(), jobs_.end());
  Calibrator calibrator(checkpoint_, summary_.plan, jobs, calibrate_, *work_, pool_, source_.transform());
  OCTAVO_TRY(calibrator.run(*samples_));
  OCTAVO_ASSIGN(const std::vector<std::string> notes, calibrator.notes());
  summary_.notes.insert(summary_.notes.end(), notes.begin(), notes.end());
  OCTAVO_ASSIGN(statistics_, calibrator.statistics());
  OCTAVO_ASSIGN(summary_.expert_tokens, calibrator.expert_tokens());
  if (options_.earlier)
    for (std::string& note : drift_notes(options_.earlier->statistics, statistics_))
      summary_.notes.push_back(std::move(note));
  if (!options_.kv) return {};
  // The second time, every layer is finished: the calibrator gives the weights it has made.
  return calibrate_kv(
      [&](const LinearPlace& place, const LayerLoader& loader) { return calibrator.group(place, loader); });
}

Result<void> Quantizer::write_calibration(const std::filesystem::path& folder) const {
  if (!work_ || jobs_.empty()) return {};
  OCTAVO_TRY(write_statistics(folder / kStatisticsName, statistics_));
  const TransformOptions& transforms = options_.transforms;
  const std::string described = transforms.describe();
  return write_text_file(folder / kStatisticsReportName,
                         statistics_report(statistics_, place_formats(), calibrate_.estimator,
                                           {described, &*samples_, calibrate_.data.length, calibrate_.data.seed,
                                            summary_.expert_tokens, summary_.notes}));
}

// With one scale, of the element that a place's values get.
std::map<std::string, TensorFormat> Quantizer::place_formats() const {
  std::map<std::string, TensorFormat> formats;
  for (const LinearModule& module : modules_)
    if (const TensorFormat& own = summary_.plan.linear(module.name).activation; own.scaled())
      formats.emplace(place_name(place_of(module)), tensor_wide_format(own.element));
  for (size_t layer = 0; layer < summary_.plan.kv.size(); ++layer)
    for (const bool key : {true, false})
      if (const TensorFormat& own = key ? summary_.plan.kv[layer].k : summary_.plan.kv[layer].v; own.scaled())
        for (int64_t head = 0; head < checkpoint_.config().num_kv_heads; ++head)
          formats.emplace(kv_place_name(static_cast<int>(layer), key, head), tensor_wide_format(own.element));
  return formats;
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
