#include "quantize/quantize_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/output_folder.h"
#include "formats/quantize_rows.h"
#include "numerics/bits.h"
#include "parallel/thread_pool.h"
#include "quantize/companions.h"
#include "quantize/quantization_config.h"
#include "quantize/sharded_writer.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

constexpr int64_t kCopyBytes = int64_t{4} << 20;  // of a tensor copied at a time
constexpr int64_t kSlabBytes = int64_t{1} << 20;  // of a source quantized at a time, at least one row of blocks

// One weight to quantize, and the tensor of its scales.
struct Job : QuantizeJob {
  ScaleTensor scale_tensor;
  std::optional<ScaleTensor> input_scale;  // static activations
};

// q, k, v of a layer run as one product in most engines, and so do gate and up.
std::string fused_group(const LinearModule& module, const TensorFormat& format) {
  const std::string_view part = module.role <= Role::kV                                  ? "qkv"
                                : module.role == Role::kGate || module.role == Role::kUp ? "gate_up"
                                                                                         : "";
  if (part.empty()) return module.name;
  return fmt::format("{} {} {}", module.layer, part, element_name(format.element));
}

Result<void> check_source(const Checkpoint& checkpoint) {
  if (checkpoint.is_gguf())
    return fail({.what = "a GGUF file cannot be quantized in one step",
                 .where = checkpoint.path().string(),
                 .expected = "a folder with BF16, F16 or F32 safetensors",
                 .remedy = "convert it first: octavo convert"});
  if (checkpoint.dialect() == "none") return {};
  return fail({.what = "the model is already quantized",
               .where = checkpoint.path().string(),
               .found = fmt::format("quantization dialect {}", checkpoint.dialect()),
               .expected = "a folder with BF16, F16 or F32 weights",
               .remedy = "quantize the model that it was made from"});
}

class Quantizer {
 public:
  Quantizer(const Checkpoint& checkpoint, const QuantizeOptions& options,
            const std::function<void(const QuantizeProgress&)>& progress)
      : checkpoint_(checkpoint), options_(options), report_(progress), modules_(checkpoint.config().linear_modules()) {}

  // Plan, dialect, and the tensors of the output.
  Result<void> prepare();
  // The calibration pass, where one is asked for.
  Result<void> calibrate(const std::filesystem::path& out);
  // Everything into the folder, still without its name.
  Result<void> write(const std::filesystem::path& folder);
  void remove_work();
  QuantizeSummary summary();
  int64_t bytes_after() const { return summary_.bytes_after; }

 private:
  Result<void> plan_jobs();
  Result<void> plan_scales();
  Result<float> earlier_input_scale(const Job& job);
  Result<void> lay_out();
  Result<void> copy(const TensorEntry& entry, ShardedWriter& writer);
  Result<void> quantize(const Job& job, ShardedWriter& writer);
  Result<void> take_calibrated(ShardedWriter& writer);
  Result<void> write_calibration(const std::filesystem::path& folder) const;
  Result<RoundingError> quantize_slab(const Job& job, const TensorEntry& entry, int64_t begin, int64_t end,
                                      std::span<float> scales, ShardedWriter& writer);
  Result<float> shared_scale(const Job& job);
  Result<void> write_config(const std::filesystem::path& folder) const;
  Result<void> over_slabs(const TensorEntry& entry, int64_t slab_rows,
                          FunctionRef<Result<void>(int64_t begin, int64_t end)> body);
  void done(int64_t bytes, std::string_view tensor);

  const Checkpoint& checkpoint_;
  const QuantizeOptions& options_;
  const std::function<void(const QuantizeProgress&)>& report_;
  std::vector<LinearModule> modules_;
  std::vector<Job> jobs_;
  std::vector<const TensorEntry*> kept_;
  std::vector<TensorToWrite> layout_;
  std::map<std::string, float> shared_scales_;  // fused group -> scale
  CalibrateOptions calibrate_;
  std::optional<WorkFolder> work_;
  StatisticsMap statistics_;
  std::map<std::string, float> input_scales_;  // by module: known before anything is read
  QuantizeSummary summary_;
  QuantizeProgress progress_;
  std::mutex mutex_;
  ThreadPool pool_{std::max(1, options_.threads)};
};

int64_t rows_bytes(const TensorEntry& entry, int64_t rows) {
  return rows * entry.plain->cols() * element_bits(entry.plain->element) / 8;
}

RowsView rows_of(const TensorEntry& entry, int64_t begin, int64_t end) {
  return {entry.plain->element, entry.plain->data.data() + rows_bytes(entry, begin), end - begin, entry.plain->cols()};
}

// Where the value is that made an amax infinite.
std::optional<Position> find_non_finite_if(float amax, const RowsView& rows) {
  if (is_finite(amax)) return std::nullopt;
  return find_non_finite(rows);
}

// Rows per slab: whole blocks, some megabytes at most.
int64_t slab_rows(const TensorEntry& entry, const TensorFormat& format) {
  const int64_t unit = format.granularity == Granularity::kBlock ? format.block_rows : 1;
  return unit * std::max<int64_t>(kSlabBytes / std::max<int64_t>(rows_bytes(entry, unit), 1), 1);
}

Error not_finite(const TensorEntry& entry, int64_t first_row, const Position& at) {
  return {.what = "a weight that is to be quantized is NaN or infinite",
          .where = fmt::format("{}: tensor {}, row {}, column {}", entry.file.string(), entry.name, first_row + at.row,
                               at.col),
          .remedy = "the checkpoint is damaged: fetch it again, or leave this module out with --ignore"};
}

Result<void> Quantizer::plan_jobs() {
  const ModelConfig& config = checkpoint_.config();
  const bool keeps_plan = options_.earlier && options_.earlier->plan;
  if (keeps_plan) {
    summary_.plan = *options_.earlier->plan;
  } else {
    OCTAVO_ASSIGN(summary_.plan, make_plan(modules_, static_cast<int>(config.num_layers), options_.plan));
  }
  summary_.notes = summary_.plan.notes;
  for (const LinearModule& module : modules_) {
    const TensorFormat& format = summary_.plan.linear(module.name).weight;
    if (!format.scaled()) continue;
    if (module.role == Role::kHead && config.tied_embeddings)
      return fail({.what = "the head of this model is its embedding table, which stays as it is",
                   .where = module.name,
                   .found = format.describe(),
                   .remedy = "leave lm_head out of the overrides"});
    Job& job = jobs_.emplace_back();
    job.module = module;
    job.format = format;
    job.fused = fused_group(module, format);
  }
  if (jobs_.empty())
    return fail({.what = "the scheme quantizes no weight of this model",
                 .where = fmt::format("--scheme {}", options_.plan.scheme),
                 .expected = "a scheme with quantized weights, and rules that leave some"});
  const std::string& dialect = keeps_plan && options_.dialect.empty() ? options_.earlier->dialect : options_.dialect;
  OCTAVO_ASSIGN(summary_.dialect, choose_dialect(dialect, summary_.plan, modules_));
  return plan_scales();
}

// The scale tensors, and static activation scales that are known already.
Result<void> Quantizer::plan_scales() {
  for (Job& job : jobs_) {
    job.scale_tensor = scale_tensor(summary_.dialect, job.module, job.format);
    if (!has_input_scale(summary_.plan.linear(job.module.name))) continue;
    job.input_scale = input_scale_tensor(summary_.dialect, job.module);
    if (options_.earlier) {
      OCTAVO_ASSIGN(input_scales_[job.module.name], earlier_input_scale(job));
    } else if (!options_.calibrate)
      return fail({.what = "static activation scales need calibration text",
                   .where = job.module.name,
                   .found = summary_.plan.linear(job.module.name).activation.describe(),
                   .remedy = "give some with --calibrate FILE, or statistics with --scales-from"});
  }
  return {};
}

Result<float> Quantizer::earlier_input_scale(const Job& job) {
  const EarlierScales& earlier = *options_.earlier;
  if (const auto stored = earlier.input_scales.find(job.module.name); stored != earlier.input_scales.end())
    return stored->second;
  const std::string place = place_name(job.module.layer, input_of(job.module.role));
  const auto seen = earlier.statistics.find(place);
  if (seen == earlier.statistics.end() || seen->second.channels() != job.module.cols)
    return fail(
        {.what = "no statistics of the input of a module",
         .where = earlier.path.string(),
         .found = seen == earlier.statistics.end() ? "nothing" : fmt::format("{} channels", seen->second.channels()),
         .expected = fmt::format("{} with {} channels, for {}", place, job.module.cols, job.module.name),
         .remedy = "calibrate this model: --calibrate FILE"});
  const TensorFormat& format = summary_.plan.linear(job.module.name).activation;
  const ScaleEstimate estimate =
      estimate_scale(seen->second.histogram(), seen->second.amax(), format, options_.estimator);
  return estimate.scale;
}

Result<void> Quantizer::lay_out() {
  std::map<std::string, const Job*> by_weight;
  for (const Job& job : jobs_) by_weight[job.module.name + ".weight"] = &job;
  for (const TensorEntry& entry : checkpoint_.tensors().entries()) {
    progress_.bytes_total += entry.stored_bytes;
    if (!entry.plain)
      return fail({.what = "tensor has a type that cannot be copied",
                   .where = fmt::format("{}: tensor {}", entry.file.string(), entry.name),
                   .found = entry.stored_type});
    if (const auto job = by_weight.find(entry.name); job != by_weight.end()) {
      layout_.push_back({entry.name, job->second->format.element, entry.shape});
      layout_.push_back({job->second->scale_tensor.name, ElementType::kF32, job->second->scale_tensor.shape});
      if (job->second->input_scale)
        layout_.push_back({job->second->input_scale->name, ElementType::kF32, job->second->input_scale->shape});
    } else if (entry.name == "lm_head.weight" && checkpoint_.config().tied_embeddings) {
      summary_.notes.push_back("lm_head.weight is left out: config.json ties the head to the embedding");
      progress_.bytes_total -= entry.stored_bytes;
    } else {
      layout_.push_back({entry.name, entry.plain->element, entry.shape});
      kept_.push_back(&entry);
    }
  }
  for (const TensorToWrite& tensor : layout_) summary_.bytes_after += data_bytes(tensor);
  summary_.bytes_before = progress_.bytes_total;
  return {};
}

Result<void> Quantizer::prepare() {
  OCTAVO_TRY(check_source(checkpoint_));
  OCTAVO_TRY(plan_jobs());
  OCTAVO_TRY(lay_out());
  for (std::string& note : portability_notes(summary_.plan, modules_)) summary_.notes.push_back(std::move(note));
  return {};
}

void Quantizer::done(int64_t bytes, std::string_view tensor) {
  const std::lock_guard lock(mutex_);
  progress_.bytes_done += bytes;
  progress_.tensor = tensor;
  if (report_) report_(progress_);
}

// body(begin, end) for slabs of rows, on all threads. The error of the first slab that fails.
Result<void> Quantizer::over_slabs(const TensorEntry& entry, int64_t rows,
                                   FunctionRef<Result<void>(int64_t begin, int64_t end)> body) {
  const int64_t total = entry.plain->rows(), slabs = (total + rows - 1) / rows;
  std::optional<Error> first;
  int64_t first_slab = slabs;
  std::mutex mutex;
  pool_.parallel_items(slabs, [&](int64_t slab, int) {
    {
      const std::lock_guard lock(mutex);
      if (first_slab < slab) return;
    }
    Result<void> result = body(slab * rows, std::min(total, (slab + 1) * rows));
    if (result) return;
    const std::lock_guard lock(mutex);
    if (slab >= first_slab) return;
    first_slab = slab;
    first = std::move(result).error();
  });
  if (first) return fail(std::move(*first));
  return {};
}

Result<void> Quantizer::copy(const TensorEntry& entry, ShardedWriter& writer) {
  const std::span<const std::byte> data = entry.plain->data;
  const int64_t rows = std::max<int64_t>(entry.plain->rows(), 1);
  const int64_t row_bytes = static_cast<int64_t>(data.size()) / rows;
  if (row_bytes == 0) return {};
  return over_slabs(entry, std::max<int64_t>(kCopyBytes / row_bytes, 1),
                    [&](int64_t begin, int64_t end) -> Result<void> {
                      const auto offset = static_cast<size_t>(begin * row_bytes),
                                 size = static_cast<size_t>((end - begin) * row_bytes);
                      OCTAVO_TRY(writer.write(entry.name, offset, data.subspan(offset, size)));
                      checkpoint_.tensors().forget(entry, begin, end);
                      done(static_cast<int64_t>(size), entry.name);
                      return {};
                    });
}

// The scale of a whole tensor, from the largest magnitude of all the weights that share it.
Result<float> Quantizer::shared_scale(const Job& job) {
  if (const auto known = shared_scales_.find(job.fused); known != shared_scales_.end()) return known->second;
  float amax = 0;
  for (const Job& other : jobs_) {
    if (other.fused != job.fused || other.format != job.format) continue;
    const TensorEntry& entry = *checkpoint_.tensors().find(other.module.name + ".weight");
    OCTAVO_TRY(over_slabs(entry, slab_rows(entry, job.format), [&](int64_t begin, int64_t end) -> Result<void> {
      const RowsView rows = rows_of(entry, begin, end);
      float slab_amax = 0;
      group_amax(rows, job.format, {&slab_amax, 1});
      if (const auto at = find_non_finite_if(slab_amax, rows)) return fail(not_finite(entry, begin, *at));
      checkpoint_.tensors().forget(entry, begin, end);
      const std::lock_guard lock(mutex_);
      amax = std::max(amax, slab_amax);
      return {};
    }));
  }
  return shared_scales_[job.fused] = scale_from_amax(amax, job.format);
}

Result<RoundingError> Quantizer::quantize_slab(const Job& job, const TensorEntry& entry, int64_t begin, int64_t end,
                                               std::span<float> scales, ShardedWriter& writer) {
  const RowsView rows = rows_of(entry, begin, end);
  const TensorFormat& format = job.format;
  thread_local std::vector<std::byte> codes;
  codes.resize(static_cast<size_t>(format.element_bytes(end - begin, rows.cols)));
  RoundingError error;
  if (format.granularity == Granularity::kTensor) {
    error = encode_rows(rows, format, scales, codes);
  } else {
    const int64_t first =
        format.granularity == Granularity::kRow ? begin : begin / format.block_rows * format.scale_cols(rows.cols);
    const std::span<float> own = scales.subspan(
        static_cast<size_t>(first), static_cast<size_t>(format.scale_rows(end - begin) * format.scale_cols(rows.cols)));
    group_amax(rows, format, own);
    if (const auto at = find_non_finite_if(*std::max_element(own.begin(), own.end()), rows))
      return fail(not_finite(entry, begin, *at));
    for (float& scale : own) scale = scale_from_amax(scale, format);
    error = encode_rows(rows, format, own, codes);
  }
  OCTAVO_TRY(writer.write(entry.name, static_cast<size_t>(format.element_bytes(begin, rows.cols)), codes));
  checkpoint_.tensors().forget(entry, begin, end);
  return error;
}

Result<void> Quantizer::quantize(const Job& job, ShardedWriter& writer) {
  const TensorEntry& entry = *checkpoint_.tensors().find(job.module.name + ".weight");
  const TensorFormat& format = job.format;
  std::vector<float> scales(
      static_cast<size_t>(format.scale_rows(job.module.rows) * format.scale_cols(job.module.cols)));
  if (format.granularity == Granularity::kTensor) {
    OCTAVO_ASSIGN(scales[0], shared_scale(job));
  }
  // Added up in the order of the slabs: the figure does not depend on the threads.
  const int64_t rows = slab_rows(entry, format);
  std::vector<RoundingError> errors(static_cast<size_t>((job.module.rows + rows - 1) / rows));
  OCTAVO_TRY(over_slabs(entry, rows, [&](int64_t begin, int64_t end) -> Result<void> {
    OCTAVO_ASSIGN(errors[static_cast<size_t>(begin / rows)], quantize_slab(job, entry, begin, end, scales, writer));
    done(rows_bytes(entry, end - begin), entry.name);
    return {};
  }));
  OCTAVO_TRY(writer.write(job.scale_tensor.name, 0, std::as_bytes(std::span(scales))));
  if (job.input_scale)
    OCTAVO_TRY(writer.write(job.input_scale->name, 0, std::as_bytes(std::span(&input_scales_.at(job.module.name), 1))));
  RoundingError total;
  for (const RoundingError& error : errors) total += error;
  summary_.quantized.push_back({entry.name, format, total.relative_rms(), 0});
  return {};
}

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
  const std::string fingerprint = Calibrator::fingerprint(checkpoint_, summary_.plan, calibrate_, samples);
  OCTAVO_ASSIGN(WorkFolder work, WorkFolder::open(out, fingerprint));
  work_.emplace(std::move(work));
  const std::vector<QuantizeJob> jobs(jobs_.begin(), jobs_.end());
  Calibrator calibrator(checkpoint_, summary_.plan, jobs, calibrate_, *work_, pool_);
  OCTAVO_TRY(calibrator.run(samples));
  for (const std::string& note : calibrator.notes()) summary_.notes.push_back(note);
  OCTAVO_ASSIGN(statistics_, calibrator.statistics());
  if (options_.earlier)
    for (std::string& note : drift_notes(options_.earlier->statistics, statistics_))
      summary_.notes.push_back(std::move(note));
  return {};
}

Result<void> Quantizer::write_calibration(const std::filesystem::path& folder) const {
  if (!work_) return {};
  OCTAVO_TRY(write_statistics(folder / kStatisticsName, statistics_));
  TensorFormat format = tensor_wide_format(ElementType::kE4m3);
  for (const Job& job : jobs_)
    if (const TensorFormat& own = summary_.plan.linear(job.module.name).activation; own.scaled())
      format = tensor_wide_format(own.element);
  return write_text_file(folder / kStatisticsReportName,
                         statistics_report(statistics_, format, options_.calibrate->estimator));
}

// The finished layers of the work folder into the output.
Result<void> Quantizer::take_calibrated(ShardedWriter& writer) {
  std::map<int, std::vector<const Job*>> by_layer;
  for (const Job& job : jobs_) by_layer[job.module.layer].push_back(&job);
  for (const auto& [layer, jobs] : by_layer) {
    std::map<std::string, std::pair<TensorFormat, Shape>> formats;
    for (const Job* job : jobs) formats[job->module.name] = {job->format, {job->module.rows, job->module.cols}};
    OCTAVO_ASSIGN(const QuantizedLayer weights, work_->load(layer, formats));
    for (const Job* job : jobs) {
      const QuantizedLinear& linear = weights.at(job->module.name);
      const std::string name = job->module.name + ".weight";
      OCTAVO_TRY(writer.write(name, 0, {linear.matrix.codes.data(), linear.matrix.codes.size()}));
      OCTAVO_TRY(writer.write(job->scale_tensor.name, 0, std::as_bytes(std::span(linear.matrix.scales))));
      if (job->input_scale)
        OCTAVO_TRY(writer.write(job->input_scale->name, 0, std::as_bytes(std::span(&linear.input_scale, 1))));
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

Result<void> Quantizer::write_config(const std::filesystem::path& folder) const {
  const std::filesystem::path source = checkpoint_.path() / "config.json";
  OCTAVO_ASSIGN(const std::string text, read_text_file(source));
  OCTAVO_ASSIGN(Json config, parse_json(text, source.string()));
  config["quantization_config"] = write_quantization_config(summary_.dialect, summary_.plan, modules_);
  return write_text_file(folder / "config.json", config.dump(2) + "\n");
}

Result<void> Quantizer::write(const std::filesystem::path& folder) {
  OCTAVO_ASSIGN(ShardedWriter writer, ShardedWriter::create(folder, layout_, options_.shard_bytes));
  if (work_) {
    OCTAVO_TRY(take_calibrated(writer));
  } else {
    for (const Job& job : jobs_) OCTAVO_TRY(quantize(job, writer));
  }
  for (const TensorEntry* entry : kept_) OCTAVO_TRY(copy(*entry, writer));
  OCTAVO_TRY(writer.commit());
  OCTAVO_ASSIGN(summary_.copied_files, copy_companions(checkpoint_.path(), folder));
  OCTAVO_TRY(write_calibration(folder));
  return write_config(folder);
}

QuantizeSummary Quantizer::summary() {
  summary_.tensors_kept = static_cast<int64_t>(kept_.size());
  for (const QuantizeSummary::Tensor& tensor : summary_.quantized) {
    summary_.mean_error += tensor.error / static_cast<double>(summary_.quantized.size());
    if (tensor.error < summary_.worst_error) continue;
    summary_.worst_error = tensor.error;
    summary_.worst_tensor = tensor.name;
  }
  return std::move(summary_);
}

// Early, so that nobody waits for a disk to fill up.
Result<void> check_space(const std::filesystem::path& out, int64_t bytes) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::absolute(out, error).parent_path();
  const std::filesystem::space_info space = std::filesystem::space(parent, error);
  if (error || space.available >= static_cast<uintmax_t>(bytes)) return {};
  return fail({.what = "not enough disk space",
               .where = parent.string(),
               .found = fmt::format("{} MB free", space.available / 1'000'000),
               .expected = fmt::format("{} MB", (bytes + 999'999) / 1'000'000)});
}

}  // namespace

Result<QuantizeSummary> quantize_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                            const QuantizeOptions& options,
                                            const std::function<void(const QuantizeProgress&)>& progress) {
  OCTAVO_TRY(check_output(checkpoint.path(), out));
  Quantizer quantizer(checkpoint, options, progress);
  OCTAVO_TRY(quantizer.prepare());
  OCTAVO_TRY(check_space(out, quantizer.bytes_after()));
  OCTAVO_TRY(quantizer.calibrate(out));
  OCTAVO_ASSIGN(OutputFolder folder, OutputFolder::create(checkpoint.path(), out));
  OCTAVO_TRY(quantizer.write(folder.path()));
  OCTAVO_TRY(folder.finish());
  quantizer.remove_work();
  return quantizer.summary();
}

}  // namespace octavo
