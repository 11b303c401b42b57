#include "quantize/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "formats/quantize_rows.h"
#include "kernels/linear.h"
#include "parallel/slabs.h"
#include "quantize/damage.h"
#include "quantize/expert_coverage.h"
#include "quantize/kv_calibrator.h"
#include "quantize/outliers.h"
#include "quantize/quantization_config.h"
#include "quantize/scale_search.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSlabRows = 64;  // of a weight that a thread takes at least

RowsView rows_of(std::span<const float> values, int64_t rows, int64_t cols) {
  return {ElementType::kF32, reinterpret_cast<const std::byte*>(values.data()), rows, cols};
}

// Added up in the order of the rows, whatever thread takes which.
double relative_error(const MatrixView& matrix, std::span<const float> weights, ThreadPool& pool) {
  std::vector<RoundingError> errors(static_cast<size_t>(matrix.rows));
  pool.parallel_for(matrix.rows, kSlabRows, [&](int64_t begin, int64_t end, int) {
    std::vector<float> rounded(static_cast<size_t>(matrix.cols));
    for (int64_t r = begin; r < end; ++r) {
      dequantize_row(matrix, r, rounded.data());
      const float* row = weights.data() + r * matrix.cols;
      for (size_t c = 0; c < rounded.size(); ++c) {
        const double value = row[c], difference = rounded[c] - value;
        errors[static_cast<size_t>(r)] += {difference * difference, value * value};
      }
    }
  });
  RoundingError total;
  for (const RoundingError& error : errors) total += error;
  return total.relative_rms();
}

Matrix round_on_all_threads(const RowsView& rows, const TensorFormat& format, float shared_amax, ThreadPool& pool) {
  Matrix out = unrounded_matrix(format, rows.rows, rows.cols, shared_amax);
  const int64_t unit = format.granularity == Granularity::kBlock ? format.block_rows : 1;
  const int64_t row_bytes = rows.cols * static_cast<int64_t>(sizeof(float));
  pool.parallel_for(rows.rows, unit * std::max<int64_t>(kSlabRows / unit, 1), [&](int64_t begin, int64_t end, int) {
    round_into(out, begin, {rows.element, rows.data + begin * row_bytes, end - begin, rows.cols});
  });
  return out;
}

// 64-bit FNV-1a of the samples.
uint64_t hash_samples(const CalibrationSet& set) {
  uint64_t hash = 0xCBF29CE484222325ull;
  const auto mix = [&](uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ ((value >> (8 * i)) & 0xFF)) * 0x100000001B3ull;
  };
  for (const auto& sample : set.samples) {
    mix(sample.size());
    for (const TokenId token : sample) mix(static_cast<uint64_t>(token));
  }
  return hash;
}

}  // namespace

PrecisionPlan running_plan(const PrecisionPlan& plan, const std::vector<LinearModule>& modules,
                           const CalibrateOptions& options) {
  const bool planned = options.planned_activations;
  const Isa isa = options.isa;
  PrecisionPlan run = plan;
  compute_kv_scales(run);
  for (const LinearModule& module : modules) {
    LinearPlan& linear = run.linears.find(module.name)->second;
    if (!planned && linear.activation.scaled()) linear.activation = plain_format(ElementType::kBf16);
    const LinearKey key{linear.weight, linear.activation, module.rows, module.cols};
    const bool slow = choose_linear(key, isa).isa == Isa::kReference && isa != Isa::kReference;
    if (slow) linear.weight = plain_format(ElementType::kF32);
  }
  if (!planned)
    for (KvPlan& kv : run.kv) kv.k = kv.v = plain_format(ElementType::kBf16);
  return run;
}

Calibrator::Calibrator(const Checkpoint& checkpoint, const PrecisionPlan& plan, const std::vector<QuantizeJob>& jobs,
                       const CalibrateOptions& options, const WorkFolder& folder, ThreadPool& pool,
                       WeightTransform* transform)
    : checkpoint_(checkpoint),
      plan_(plan),
      run_plan_(running_plan(plan, checkpoint.config().linear_modules(), options)),
      jobs_(jobs),
      options_(options),
      folder_(folder),
      pool_(pool),
      transform_(transform) {
  for (const QuantizeJob& job : jobs_) jobs_of_[place_of(job.module)].push_back(&job);
}

std::string Calibrator::fingerprint(const Checkpoint& checkpoint, const PrecisionPlan& plan,
                                    const CalibrateOptions& options, const CalibrationSet& samples,
                                    const WeightTransform* transform) {
  std::string text = fmt::format("octavo calibration 4\nmodel {}\n", checkpoint.path().string());
  std::error_code ignored;
  std::vector<std::string> files;
  for (fs::directory_iterator it(checkpoint.path(), ignored), end; it != end; it.increment(ignored))
    if (it->path().extension() == ".safetensors" || it->path().filename() == "config.json")
      files.push_back(fmt::format("file {} {} {}\n", it->path().filename().string(), it->file_size(ignored),
                                  it->last_write_time(ignored).time_since_epoch().count()));
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) text += file;
  text += fmt::format("samples {} tokens {} hash {:016x}\n", samples.samples.size(), samples.tokens(),
                      hash_samples(samples));
  text += fmt::format("rounding {} damping {} act-order {} planned {} isa {} estimator {}\n",
                      options.rounding == Rounding::kGptq ? "gptq" : "nearest", options.gptq.damping,
                      options.gptq.act_order, options.planned_activations, isa_name(options.isa),
                      estimator_text(options.estimator));
  if (transform != nullptr) text += fmt::format("transform {}\n", transform->options().describe());
  for (const auto& [name, scale] : options.input_scales) text += fmt::format("{} input scale {}\n", name, scale);
  for (const auto& [name, linear] : plan.linears)
    text += fmt::format("{} {} {} {}\n", name, linear.weight.describe(), linear.activation.describe(),
                        linear.activation.scale_time == ScaleTime::kStored ? "static" : "dynamic") +
            (linear.outliers > 0 ? fmt::format("{} outliers {}\n", name, linear.outliers) : "");
  if (options.planned_activations)
    for (const KvPlan& kv : plan.kv) text += fmt::format("kv {} {}\n", kv.k.describe(), kv.v.describe());
  return text;
}

Result<void> Calibrator::run(const CalibrationSet& samples, PassOptions options) {
  options.isa = options_.isa;
  options.memory_limit = options_.memory_limit;
  options.spill_folder = folder_.path();
  options.progress = options_.progress;
  samples_ = &samples;
  OCTAVO_TRY(load_factors());
  CalibrationPass pass(checkpoint_, run_plan_, samples, std::move(options), pool_);
  const Result<void> ran = pass.run(*this);
  fit_seconds_ += pass.fit_seconds();
  return ran;
}

bool Calibrator::watches(int layer) const {
  const bool wide_head = layer < 0 && jobs_of({}).empty();
  return !wide_head && !folder_.has(layer);
}

const std::vector<const QuantizeJob*>& Calibrator::jobs_of(const LinearPlace& place) const {
  static const std::vector<const QuantizeJob*> none;
  const auto found = jobs_of_.find(place);
  return found == jobs_of_.end() ? none : found->second;
}

bool Calibrator::needs_hessian(const LinearPlace& place) const {
  const bool awq = transform_ != nullptr && transform_->options().awq;
  return (options_.rounding == Rounding::kGptq || awq) && !jobs_of(place).empty();
}

int64_t Calibrator::bytes_seen(const LinearPlace& place) const {
  return needs_hessian(place) ? Hessian::bytes(input_cols(checkpoint_.config(), place)) : 0;
}

Result<void> Calibrator::see(const LinearPlace& place, int64_t sample, const Activation& rows) {
  const auto [seen, is_new] = statistics_.try_emplace(place_name(place), rows.cols);
  seen->second.add(rows.format.element, rows.codes, rows.rows, rows.code_stride, pool_);
  if (seen->second.damaged()) return fail(damaged_activations(seen->first, *samples_, sample));
  if (!needs_hessian(place)) return {};
  std::unique_ptr<Hessian>& hessian = hessians_[place];
  if (!hessian) hessian = std::make_unique<Hessian>(rows.cols, options_.isa, hessian_work_);
  hessian->add(rows, pool_);
  return {};
}

Result<void> Calibrator::see_experts(int layer, std::span<const int64_t> tokens) {
  expert_tokens_.assign(tokens.begin(), tokens.end());
  for (std::string& note : expert_notes(layer, tokens)) notes_.push_back(std::move(note));
  return {};
}

Result<void> Calibrator::see_kv(int layer, int64_t sample, int64_t rows, const float* k, const float* v,
                                int64_t stride) {
  const ModelConfig& c = checkpoint_.config();
  for (int64_t head = 0; head < c.num_kv_heads; ++head)
    for (const bool key : {true, false}) {
      const auto [place, is_new] = statistics_.try_emplace(kv_place_name(layer, key, head), c.head_dim);
      const float* values = (key ? k : v) + head * c.head_dim;
      place->second.add(ElementType::kF32, reinterpret_cast<const std::byte*>(values), rows, stride * 4, pool_);
      if (place->second.damaged()) return fail(damaged_activations(place->first, *samples_, sample));
    }
  return {};
}

Result<std::vector<float>> Calibrator::read_weight(const LinearModule& module) const {
  const TensorEntry& entry = *checkpoint_.tensors().find(module.name + ".weight");
  std::vector<float> values(static_cast<size_t>(module.rows * module.cols));
  const Result<void> read = over_slabs(pool_, module.rows, kSlabRows, [&](int64_t begin, int64_t end) -> Result<void> {
    const std::span<float> slab = std::span(values).subspan(static_cast<size_t>(begin * module.cols),
                                                            static_cast<size_t>((end - begin) * module.cols));
    OCTAVO_TRY(checkpoint_.tensors().read_f32(entry, begin, end, slab));
    if (const auto bad = find_non_finite(rows_of(slab, end - begin, module.cols)))
      return fail(damaged_weight(entry, begin + bad->row, bad->col));
    return {};
  });
  if (!read) return fail(read.error());
  checkpoint_.tensors().forget(entry, 0, module.rows);
  return values;
}

// The largest magnitude of all the weights that share a scale, which read the same input; 0 for formats whose weights
// share none.
Result<float> Calibrator::shared_amax(const QuantizeJob& job, const std::vector<int32_t>& outliers) {
  if (job.format.granularity != Granularity::kTensor && !job.format.outer()) return 0.0f;
  return shared_amax_.of(jobs_, job, [&](const QuantizeJob& other) -> Result<float> {
    OCTAVO_ASSIGN(std::vector<float> values, read_weight(other.module));
    take_outlier_columns(values, other.module.cols, outliers);
    float amax = 0;
    group_amax(rows_of(values, other.module.rows, other.module.cols), tensor_wide_format(ElementType::kE4m3),
               {&amax, 1});
    return amax;
  });
}

Result<QuantizedLinear> Calibrator::quantize_module(const QuantizeJob& job, const GptqSolver* solver,
                                                    std::span<const float> importance,
                                                    const std::vector<int32_t>& outliers) {
  const LinearModule& m = job.module;
  OCTAVO_ASSIGN(std::vector<float> weights, read_weight(m));
  OCTAVO_ASSIGN(const float amax, shared_amax(job, outliers));
  QuantizedLinear linear;
  linear.outliers = take_outlier_columns(weights, m.cols, outliers);
  if (solver != nullptr) {
    GptqResult result = solver->quantize(weights, m.rows, job.format, amax, pool_);
    linear.matrix = std::move(result.matrix);
    linear.objective = result.objective;
    linear.rounding_objective = result.rounding_objective;
  } else if (!importance.empty()) {
    linear.matrix = round_matrix_searched(weights, m.rows, m.cols, importance, job.format, amax, pool_);
  } else {
    linear.matrix = round_on_all_threads(rows_of(weights, m.rows, m.cols), job.format, amax, pool_);
  }
  linear.error = relative_error(linear.matrix.view(), weights, pool_);
  return linear;
}

Result<void> Calibrator::quantize_group(const LinearPlace& place) {
  const std::vector<const QuantizeJob*>& jobs = jobs_of(place);
  const std::string name = place_name(place);
  const std::unique_ptr<Hessian> hessian = std::exchange(hessians_[place], nullptr);
  hessians_.erase(place);
  // It would keep memory alive that it shares with the layer's weights (base/aligned.h).
  if (hessians_.empty()) hessian_work_ = {};
  std::vector<int32_t> outliers;
  if (const int64_t count = jobs.empty() ? 0 : plan_.linear(jobs[0]->module.name).outliers; count > 0) {
    outliers = choose_outliers(statistics_.at(name).channel_amax(), count);
    if (hessian) hessian->clear(outliers);
  }
  std::optional<GptqSolver> solver;
  std::vector<float> importance;  // of columns, where weights are rounded with a look at the activations
  if (hessian && options_.rounding != Rounding::kGptq) {
    const auto size = static_cast<size_t>(hessian->size());
    for (size_t c = 0; c < size; ++c) importance.push_back(hessian->matrix()[c * size + c]);
  } else if (hessian) {
    auto created = GptqSolver::create(hessian->matrix(), hessian->size(), options_.gptq);
    if (!created) {
      Error error = std::move(created).error();
      error.where = name;
      return fail(std::move(error));
    }
    solver = std::move(*created);
    if (solver->damping_used() > options_.gptq.damping)
      notes_.push_back(
          fmt::format("{}: GPTQ's damping was raised to {} to factor the Hessian", name, solver->damping_used()));
  }
  for (const QuantizeJob* job : jobs) {
    OCTAVO_ASSIGN(QuantizedLinear linear, quantize_module(*job, solver ? &*solver : nullptr, importance, outliers));
    const LinearPlan& plan = plan_.linear(job->module.name);
    const auto kept = options_.input_scales.find(job->module.name);
    if (has_input_scale(plan))
      linear.input_scale = kept != options_.input_scales.end() ? kept->second : input_scale(place, plan.activation);
    weights_[job->module.name] = std::move(linear);
  }
  return {};
}

// The static scale of a group's input, and a note where another estimator than amax does worse than it, or nothing.
float Calibrator::input_scale(const LinearPlace& at, const TensorFormat& format) {
  const std::string place = place_name(at);
  const ValueStatistics& seen = statistics_.at(place);
  const ScaleEstimate estimate = estimate_scale(seen.histogram(), seen.amax(), format, options_.estimator);
  const auto add = [&](std::string note) {  // modules that read the same input come here one after the other
    if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(std::move(note));
  };
  if (estimate.fell_back) add(fallback_note(place, options_.estimator));
  if (estimate.loses_to_amax())
    add(fmt::format("{}: {} loses to amax on the calibration's activations: relative squared error {:.3g}, amax {:.3g}",
                    place, estimator_text(options_.estimator), estimate.error, estimate.amax_error));
  return estimate.scale;
}

Result<StatisticsMap> Calibrator::statistics() const {
  StatisticsMap all;
  const int layers = static_cast<int>(checkpoint_.config().num_layers);
  for (int layer = -1; layer < layers; ++layer) {
    if (layer < 0 && !folder_.has(layer)) continue;
    OCTAVO_ASSIGN(StatisticsMap own, folder_.load_statistics(layer));
    all.merge(own);
  }
  return all;
}

Result<std::vector<std::string>> Calibrator::notes() const {
  std::vector<std::string> all;
  for (int layer = 0; layer <= static_cast<int>(checkpoint_.config().num_layers); ++layer) {
    const int own = layer == checkpoint_.config().num_layers ? -1 : layer;
    if (!folder_.has(own)) continue;
    OCTAVO_ASSIGN(const std::vector<std::string> notes, folder_.load_notes(own));
    all.insert(all.end(), notes.begin(), notes.end());
  }
  return all;
}

Result<std::vector<std::vector<int64_t>>> Calibrator::expert_tokens() const {
  std::vector<std::vector<int64_t>> all;
  for (int layer = 0; layer < static_cast<int>(checkpoint_.config().num_layers); ++layer) {
    OCTAVO_ASSIGN(std::vector<int64_t> own, folder_.load_expert_tokens(layer));
    all.push_back(std::move(own));
  }
  return all;
}

Result<void> Calibrator::load_finished(int layer) {
  if (loaded_layer_ == layer) return {};
  std::map<std::string, std::pair<TensorFormat, Shape>> formats;
  for (const QuantizeJob& job : jobs_)
    if (job.module.layer == layer) formats[job.module.name] = {job.format, {job.module.rows, job.module.cols}};
  OCTAVO_ASSIGN(weights_, folder_.load(layer, formats));
  loaded_layer_ = layer;
  return {};
}

// A module as if a checkpoint held what it has become.
Result<StoredLinear> Calibrator::source(const LinearModule& module) {
  Result<StoredLinear> result = checkpoint_.linear(module.name);
  const auto found = weights_.find(module.name);
  if (!result || found == weights_.end()) return result;
  StoredLinear& stored = *result;
  const Matrix& matrix = found->second.matrix;
  TensorEntry& entry = entries_[module.name];
  entry = *stored.entry;
  if (run_plan_.linear(module.name).weight.scaled()) {
    entry.plain = TensorView{matrix.format.element, entry.shape, {matrix.codes.data(), matrix.codes.size()}};
    stored.format = matrix.format;
    stored.scales = matrix.scales;
    stored.zeros = matrix.zeros;
    stored.outer = matrix.outer;
  } else {
    std::vector<float>& values = wide_[module.name] = dequantize(matrix.view());
    entry.plain = TensorView{ElementType::kF32, entry.shape, std::as_bytes(std::span<const float>(values))};
    stored.format = plain_format(ElementType::kF32);
  }
  stored.entry = &entry;
  stored.outliers = found->second.outliers;
  if (found->second.input_scale > 0) stored.input_scale = found->second.input_scale;
  return result;
}

Result<LinearGroup> Calibrator::group(const LinearPlace& place, const LayerLoader& loader) {
  const auto start = std::chrono::steady_clock::now();
  const int layer = place.layer;
  const bool finished = !watches(layer);
  if (finished) {
    OCTAVO_TRY(load_finished(layer));
  } else {
    if (loaded_layer_ != kNoLayer) weights_.clear();  // of a finished one
    loaded_layer_ = kNoLayer;
    OCTAVO_TRY(quantize_group(place));
  }
  auto loaded = loader.group(place, [&](const LinearModule& module) { return source(module); });
  // Checkpoint::linear() looked at all of the source's weight.
  for (const auto& [module, stands_for] : entries_) {
    const TensorEntry& stored = *checkpoint_.tensors().find(module + ".weight");
    checkpoint_.tensors().forget(stored, 0, stored.shape[0]);
  }
  entries_.clear();
  wide_.clear();
  if (loaded && !finished && place == layer_places(checkpoint_.config(), layer).back()) {
    OCTAVO_TRY(folder_.save(layer, weights_, {statistics_, layer_factors(layer), expert_tokens_, notes_}));
    weights_.clear();
    statistics_.clear();
    expert_tokens_.clear();
    notes_.clear();
  }
  weight_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

}  // namespace octavo
