// What becomes of each tensor, and the folder's files.
#include "quantize/quantizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "quantize/companions.h"

namespace octavo {
namespace {

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

}  // namespace

Result<void> Quantizer::plan_jobs() {
  const ModelConfig& config = checkpoint_.config();
  const bool keeps_plan = options_.earlier && options_.earlier->plan;
  if (keeps_plan) {
    summary_.plan = *options_.earlier->plan;
  } else {
    OCTAVO_ASSIGN(summary_.plan, make_plan(config, options_.plan));
  }
  summary_.notes = summary_.plan.notes;
  if (!keeps_plan && options_.plan.file != nullptr)
    summary_.notes.push_back(
        "the plan's KV formats take no part in the weights: they apply where the model runs with --plan");
  for (const LinearModule& module : modules_) {
    const TensorFormat& format = summary_.plan.linear(module.name).weight;
    if (!format.scaled()) continue;
    if (module.role == Role::kHead && config.tied_embeddings)
      return fail({.what = "the head of this model is its embedding table, which stays as it is",
                   .where = module.name,
                   .found = format.describe(),
                   .remedy = "leave lm_head out of the overrides; in a plan file, make it bf16"});
    WeightJob& job = jobs_.emplace_back();
    job.module = module;
    job.format = format;
    job.fused = fused_group(module, format);
  }
  if (jobs_.empty())
    return fail({.what = "the scheme quantizes no weight of this model",
                 .where = summary_.plan.scheme,
                 .expected = "a scheme with quantized weights, and rules that leave some"});
  const std::string& dialect = keeps_plan && options_.dialect.empty() ? options_.earlier->dialect : options_.dialect;
  OCTAVO_ASSIGN(summary_.dialect, choose_dialect(dialect, summary_.plan, modules_));
  return plan_scales();
}

// The scale tensors, and static activation scales that are known already.
Result<void> Quantizer::plan_scales() {
  for (WeightJob& job : jobs_) {
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

Result<float> Quantizer::earlier_input_scale(const WeightJob& job) {
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
  std::map<std::string, const WeightJob*> by_weight;
  for (const WeightJob& job : jobs_) by_weight[job.module.name + ".weight"] = &job;
  for (const TensorEntry& entry : checkpoint_.tensors().entries()) {
    progress_.bytes_total += entry.stored_bytes;
    if (!entry.plain)
      return fail({.what = "tensor has a type that cannot be copied",
                   .where = fmt::format("{}: tensor {}", entry.file.string(), entry.name),
                   .found = entry.stored_type});
    if (const auto job = by_weight.find(entry.name); job != by_weight.end()) {
      if (stores_packed(summary_.dialect, job->second->format)) {
        for (TensorToWrite& part : weight_tensors(summary_.dialect, job->second->module, job->second->format))
          layout_.push_back(std::move(part));
      } else {
        layout_.push_back({entry.name, job->second->format.element, entry.shape});
        layout_.push_back({job->second->scale_tensor.name, ElementType::kF32, job->second->scale_tensor.shape});
      }
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
    for (const WeightJob& job : jobs_) OCTAVO_TRY(quantize(job, writer));
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

}  // namespace octavo
