// What becomes of each tensor, and the folder's files.
#include "quantize/quantizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/convert.h"
#include "checkpoint/outliers.h"
#include "quantize/companions.h"

namespace octavo {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

// q, k, v of a layer run as one product in most engines, and so do gate and up.
std::string fused_group(const LinearModule& module, const TensorFormat& format) {
  const std::string_view part = module.role <= Role::kV                                  ? "qkv"
                                : module.role == Role::kGate || module.role == Role::kUp ? "gate_up"
                                                                                         : "";
  if (part.empty()) return module.name;
  return fmt::format("{} {} {} {}", module.layer, module.expert, part, element_name(format.element));
}

// The type of a tensor's values; empty for types that nothing here copies.
std::optional<ElementType> element_of(const TensorEntry& entry) {
  if (entry.plain) return entry.plain->element;
  const std::string& type = entry.stored_type;  // read through a transform
  return type == "BF16" || type == "F16" || type == "F32" ? element_from_safetensors(type) : std::nullopt;
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
  if (keeps_plan && !options_.kv) carry_kv();
  OCTAVO_TRY(plan_kv());
  summary_.notes.insert(summary_.notes.end(), summary_.plan.notes.begin(), summary_.plan.notes.end());
  const auto lowered = [](const KvPlan& kv) { return kv.k.scaled() || kv.v.scaled(); };
  if (!keeps_plan && options_.plan.file != nullptr && !options_.kv &&
      std::any_of(summary_.plan.kv.begin(), summary_.plan.kv.end(), lowered))
    summary_.notes.push_back("the plan's KV formats are not written: they apply where the model runs with --plan");
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
  if (jobs_.empty() && keeps_plan && has_kv()) {
    summary_.dialect = options_.earlier->dialect;
    return {};
  }
  if (jobs_.empty() && options_.kv) {
    summary_.dialect = has_kv_scale_tensors(summary_.plan) ? "compressed-tensors" : "none";
    if (options_.outliers > 0)
      return fail({.what = "outlier channels without quantized weights",
                   .where = "--outliers",
                   .found = summary_.plan.scheme,
                   .expected = "a scheme that quantizes weights, for example int8"});
    return {};
  }
  if (jobs_.empty())
    return fail({.what = "the scheme quantizes no weight of this model",
                 .where = summary_.plan.scheme,
                 .expected = "a scheme with quantized weights, and rules that leave some"});
  const std::string& dialect = keeps_plan && options_.dialect.empty() ? options_.earlier->dialect : options_.dialect;
  OCTAVO_ASSIGN(summary_.dialect, choose_dialect(dialect, summary_.plan, modules_));
  OCTAVO_TRY(plan_outliers());
  return plan_scales();
}

// How many channels of each module stay wide. Fused modules read the same input, and share them.
Result<void> Quantizer::plan_outliers() {
  if (options_.outliers <= 0) return {};
  if (!options_.calibrate)
    return fail({.what = "outlier channels are found by calibration",
                 .where = "--outliers",
                 .remedy = "give some text with --calibrate FILE"});
  if (summary_.dialect != "compressed-tensors")
    return fail({.what = "the dialect has no outlier channels",
                 .where = "--outliers",
                 .found = summary_.dialect,
                 .expected = "a scheme of the compressed-tensors dialect, for example int8 or fp8",
                 .remedy = "choose another --scheme, or leave --dialect out"});
  for (const WeightJob& job : jobs_) {
    LinearPlan& linear = summary_.plan.linears.at(job.module.name);
    if (linear.activation.scale_time == ScaleTime::kStored)
      return fail({.what = "outlier channels do not go with static activation scales",
                   .where = job.module.name,
                   .found = linear.activation.describe(),
                   .expected = "activations with a scale per token or group, or BF16"});
    linear.outliers = outlier_count(job.module.cols, options_.outliers);
  }
  summary_.notes.push_back(
      fmt::format("outlier channels ({:g} % of each layer's inputs, by calibrated amax) are Octavo's own: other "
                  "engines cannot load "
                  "this folder",
                  100 * options_.outliers));
  return {};
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
  const std::string place = place_name(place_of(job.module));
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
  if (estimate.fell_back) summary_.notes.push_back(fallback_note(place, options_.estimator));
  return estimate.scale;
}

void Quantizer::lay_out_job(const WeightJob& job, const TensorEntry& entry) {
  const LinearModule& module = job.module;
  if (stores_packed(summary_.dialect, job.format)) {
    for (TensorToWrite& part : weight_tensors(summary_.dialect, module, job.format)) layout_.push_back(std::move(part));
  } else {
    layout_.push_back({entry.name, job.format.element, entry.shape});
    layout_.push_back({job.scale_tensor.name, ElementType::kF32, job.scale_tensor.shape});
  }
  if (const int64_t count = summary_.plan.linear(module.name).outliers; count > 0) {
    layout_.push_back({outlier_channels_name(module), ElementType::kInt32, {count}});
    layout_.push_back({outlier_weight_name(module), ElementType::kBf16, {module.rows, count}});
  }
  if (job.input_scale) layout_.push_back({job.input_scale->name, ElementType::kF32, job.input_scale->shape});
}

Result<void> Quantizer::lay_out() {
  std::map<std::string, const WeightJob*> by_weight;
  for (const WeightJob& job : jobs_) by_weight[job.module.name + ".weight"] = &job;
  for (const TensorEntry& entry : checkpoint_.tensors().entries()) {
    progress_.bytes_total += entry.stored_bytes;
    const std::optional<ElementType> element = element_of(entry);
    if (!element)
      return fail({.what = "tensor has a type that cannot be copied",
                   .where = fmt::format("{}: tensor {}", entry.file.string(), entry.name),
                   .found = entry.stored_type});
    if (const auto job = by_weight.find(entry.name); job != by_weight.end()) {
      lay_out_job(*job->second, entry);
    } else if (entry.name == kHead && checkpoint_.config().tied_embeddings) {
      summary_.notes.push_back("lm_head.weight is left out: config.json ties the head to the embedding");
      progress_.bytes_total -= entry.stored_bytes;
    } else {
      layout_.push_back({entry.name, *element, entry.shape});
      kept_.push_back(&entry);
    }
  }
  for (size_t layer = 0; layer < kv_scales_.size(); ++layer)
    for (const bool key : {true, false})
      if (const auto& scales = key ? kv_scales_[layer].k : kv_scales_[layer].v; !scales.empty())
        layout_.push_back({kv_scale_name(layer, key), ElementType::kF32, {std::ssize(scales)}});
  const ModelConfig& original = source_.original().config();
  if (original.tied_embeddings && !checkpoint_.config().tied_embeddings)
    summary_.notes.push_back(fmt::format(
        "rotation parts the head from the embedding (the final norm's weight goes into the head): {:.1f} MB more",
        static_cast<double>(data_bytes(
            {"", *element_of(*checkpoint_.tensors().find(kHead)), {original.vocab_size, original.hidden_size}})) /
            1e6));
  if (checkpoint_.config().down_hadamard > 0)
    summary_.notes.push_back(
        fmt::format("only Octavo applies the transform in front of down_proj (config.json: octavo_transforms){}",
                    original.down_hadamard > 0 ? ", which the source has" : "; for other engines: --rotate offline"));
  for (const TensorToWrite& tensor : layout_) summary_.bytes_after += data_bytes(tensor);
  summary_.bytes_before = progress_.bytes_total;
  return {};
}

Result<QuantizeSource> QuantizeSource::open(const Checkpoint& checkpoint, const QuantizeOptions& options) {
  OCTAVO_TRY(check_source(checkpoint));
  const TransformOptions& transforms = options.transforms;
  if (transforms.fitted() && !options.calibrate)
    return fail({.what = fmt::format("{} needs calibration text", transforms.awq ? "AWQ" : "smoothing"),
                 .where = transforms.awq ? "--rounding awq" : "--smooth",
                 .remedy = "give some with --calibrate FILE"});
  if (transforms.fitted() && checkpoint.config().experts)
    return fail(
        {.what = "factors per channel for a mixture of experts",
         .where = transforms.awq ? "--rounding awq" : "--smooth",
         .found = fmt::format("{}: all experts of a layer and its router would have to share them",
                              checkpoint.config().architecture),
         .expected = "a dense model",
         .remedy = transforms.awq ? "use --rounding gptq" : "leave out --smooth; --rotate evens channels out too"});
  if (transforms.awq && transforms.smooth > 0)
    return fail({.what = "two ways to choose factors of the same channels",
                 .where = "--smooth, --rounding awq",
                 .remedy = "leave one out"});
  if (transforms.any() && options.earlier)
    return fail({.what = "activation scales and transformed weights that do not belong together",
                 .where = "--scales-from",
                 .found = transforms.describe(),
                 .expected = "activations as the transformed weights make them",
                 .remedy = "calibrate the transformed model: leave out --scales-from"});
  if (transforms.rotate != TransformOptions::Rotate::kNone && checkpoint.config().down_hadamard > 0)
    return fail({.what = "the model is rotated already",
                 .where = (checkpoint.path() / "config.json").string(),
                 .found = fmt::format("octavo_transforms: a Hadamard transform in blocks of {} in front of down_proj",
                                      checkpoint.config().down_hadamard),
                 .expected = "a model without transforms",
                 .remedy = "leave out --rotate, or rotate the model that this one was made from"});
  QuantizeSource source;
  source.original_ = &checkpoint;
  if (!transforms.any()) return source;
  OCTAVO_ASSIGN(TransformedCheckpoint transformed, transform_checkpoint(checkpoint, transforms));
  source.transformed_.emplace(std::move(transformed));
  return source;
}

// The source holds the tensors of its model and nothing that the loader would refuse.
Result<void> Quantizer::check_tensors() {
  const Checkpoint& original = source_.original();
  for (const auto& [name, shape] : model_tensors(original.config())) OCTAVO_TRY(original.entry(name, shape));
  OCTAVO_ASSIGN(const std::vector<Checkpoint::Unused> extras, original.unused());
  for (const Checkpoint::Unused& extra : extras)
    if (!(extra.name == kHead && original.config().tied_embeddings))
      summary_.notes.push_back(fmt::format("{} is copied: {}", extra.name, extra.why));
  for (const std::string& note : original.notes()) summary_.notes.push_back(note);
  if (original.kv_calibration() != nullptr && !options_.kv)
    summary_.notes.push_back(fmt::format(
        "the source's KV cache ({}) is not carried over: its values are those of the source's weights (--kv makes new "
        "ones)",
        kKvCalibrationName));
  return {};
}

Result<void> Quantizer::prepare() {
  OCTAVO_TRY(check_tensors());
  if (options_.earlier) OCTAVO_TRY(check_statistics(*options_.earlier, modules_));
  OCTAVO_TRY(plan_jobs());
  const auto is_static = [](const WeightJob& job) { return job.input_scale.has_value(); };
  if (options_.earlier && !options_.earlier->plan && !options_.calibrate &&
      std::none_of(jobs_.begin(), jobs_.end(), is_static))
    return fail(
        {.what = "nothing of the statistics is used",
         .where = fmt::format("--scales-from {}", options_.earlier->path.string()),
         .expected = "a scheme with static activation scales (fp8-static), or text to compare with (--calibrate)",
         .remedy = "leave out --scales-from"});
  OCTAVO_TRY(lay_out());
  for (std::string& note : portability_notes(summary_.plan, modules_)) summary_.notes.push_back(std::move(note));
  return read_samples();
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
  const ModelConfig& own = checkpoint_.config();
  if (!own.tied_embeddings && source_.original().config().tied_embeddings) {
    config["tie_word_embeddings"] = false;
    if (config.contains("text_config")) config["text_config"]["tie_word_embeddings"] = false;
  }
  if (own.down_hadamard > 0) {
    Json& model = config.contains("hidden_size") ? config : config["text_config"];
    model["octavo_transforms"]["down_proj_input"] = {{"type", "hadamard"}, {"block", own.down_hadamard}};
  }
  if (summary_.dialect != "none")
    config["quantization_config"] =
        write_quantization_config(summary_.dialect, summary_.plan, modules_, options_.kv.has_value());
  if (has_kv() && !options_.kv && !options_.earlier->kv_cache_scheme.empty()) {
    OCTAVO_ASSIGN(config["quantization_config"]["kv_cache_scheme"],
                  parse_json(options_.earlier->kv_cache_scheme, options_.earlier->path.string()));
  }
  if (options_.outliers > 0) config["quantization_config"]["octavo_outliers"] = {{"share", options_.outliers}};
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
  OCTAVO_TRY(write_kv(folder, writer));
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
