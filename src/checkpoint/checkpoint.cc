#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint_extras.h"
#include "checkpoint/dialect.h"
#include "checkpoint/gguf.h"
#include "checkpoint/model_config_keys.h"
#include "checkpoint/safetensors.h"
#include "numerics/bits.h"

namespace octavo {

struct Checkpoint::State {
  std::filesystem::path path;
  bool gguf = false;
  ModelConfig config;
  GenerationConfig generation;
  std::unique_ptr<TensorReader> tensors;
  StoredQuantization quantization;
  std::optional<KvCalibration> kv_calibration;
  std::map<std::string, LinearModule, std::less<>> modules;

  // What the const look-ups record; several loading threads may ask at once.
  std::mutex mutex;
  std::set<std::string> used;
  std::vector<std::string> notes;

  // Modules and their quantization, from configuration and tensors.
  Result<void> describe(const Json& config_json);
  std::string where(std::string_view tensor) const { return fmt::format("{}, tensor {}", path.string(), tensor); }
};

namespace {

constexpr size_t kMaxConfigBytes = size_t{32} << 20;

void add_id(std::vector<int64_t>& ids, int64_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

// generation_config.json where there is one, united with the model config's ids.
Result<GenerationConfig> read_generation(const std::filesystem::path& folder, const ModelConfig& config) {
  GenerationConfig generation;
  const std::filesystem::path path = folder / "generation_config.json";
  if (std::filesystem::exists(path)) {
    OCTAVO_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
    OCTAVO_ASSIGN(generation, parse_generation_config(text, path.string()));
  }
  for (const int64_t id : config.eos_token_ids) add_id(generation.eos_token_ids, id);
  if (!generation.bos_token_id) generation.bos_token_id = config.bos_token_id;
  return generation;
}

// ModelOpt, GPTQ and AWQ may describe their quantization in a file of its own only.
Result<void> add_separate_quantization(const std::filesystem::path& folder, Json& config) {
  if (config.contains("quantization_config")) return {};
  const std::filesystem::path modelopt = folder / "hf_quant_config.json", integers = folder / "quantize_config.json";
  const bool is_modelopt = std::filesystem::exists(modelopt);
  if (!is_modelopt && !std::filesystem::exists(integers)) return {};
  const std::filesystem::path& path = is_modelopt ? modelopt : integers;
  OCTAVO_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
  OCTAVO_ASSIGN(Json quantization, parse_config_json(text, path.string()));
  if (is_modelopt) quantization = quantization.value("quantization", Json::object());
  if (!quantization.is_object())
    return fail({.what = "wrong type", .where = path.string(), .expected = "an object under \"quantization\""});
  if (!quantization.contains("quant_method")) quantization["quant_method"] = is_modelopt ? "modelopt" : "gptq";
  config["quantization_config"] = std::move(quantization);
  return {};
}

Error no_model(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return {.what = "no such model", .where = path.string(), .remedy = "check the path"};
  Error error{.what = "not a model",
              .where = path.string(),
              .expected = "a folder with config.json and *.safetensors, or a .gguf file"};
  for (std::filesystem::directory_iterator it(path, ignored), end; !ignored && it != end; it.increment(ignored))
    if (it->path().extension() == ".gguf") error.remedy = fmt::format("open {}", it->path().string());
  return error;
}

}  // namespace

Checkpoint::Checkpoint() : state_(std::make_unique<State>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<void> Checkpoint::State::describe(const Json& config_json) {
  for (LinearModule& module : config.linear_modules()) {
    std::string name = module.name;
    modules.emplace(std::move(name), std::move(module));
  }
  OCTAVO_TRY(check_head(path, config, *tensors, notes));
  OCTAVO_ASSIGN(quantization, read_quantization(config_json, config, *tensors));
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  Checkpoint checkpoint;
  State& state = *checkpoint.state_;
  state.path = path;
  std::error_code ignored;
  Json config_json = Json::object();
  if (std::filesystem::is_regular_file(path, ignored) && path.extension() == ".gguf") {
    state.gguf = true;
    OCTAVO_ASSIGN(Gguf gguf, Gguf::open(path));
    OCTAVO_ASSIGN(state.config, model_config_from_gguf(gguf));
    OCTAVO_ASSIGN(state.tensors, open_gguf_tensors(std::move(gguf), state.config));
    state.generation.eos_token_ids = state.config.eos_token_ids;
    state.generation.bos_token_id = state.config.bos_token_id;
  } else {
    const std::filesystem::path config_path = path / "config.json";
    if (!std::filesystem::is_regular_file(config_path, ignored)) return fail(no_model(path));
    OCTAVO_ASSIGN(const std::string text, read_text_file(config_path, kMaxConfigBytes));
    OCTAVO_ASSIGN(state.config, parse_model_config(text, config_path.string()));
    OCTAVO_ASSIGN(config_json, parse_config_json(text, config_path.string()));
    OCTAVO_TRY(add_separate_quantization(path, config_json));
    OCTAVO_ASSIGN(state.generation, read_generation(path, state.config));
    OCTAVO_ASSIGN(state.tensors, open_safetensors(path));
  }
  OCTAVO_TRY(state.describe(config_json));
  if (state.gguf) state.quantization.dialect = "gguf";
  const std::filesystem::path calibration = path / kKvCalibrationName;
  if (!state.gguf && std::filesystem::exists(calibration, ignored))
    OCTAVO_TRY(checkpoint.use_kv_calibration(calibration));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::derive(const Checkpoint& base, ModelConfig config,
                                      std::unique_ptr<TensorReader> tensors) {
  Checkpoint checkpoint;
  State& state = *checkpoint.state_;
  state.path = base.path();
  state.config = std::move(config);
  state.generation = base.generation_config();
  state.tensors = std::move(tensors);
  OCTAVO_TRY(state.describe(Json::object()));
  return checkpoint;
}

const std::filesystem::path& Checkpoint::path() const {
  return state_->path;
}
bool Checkpoint::is_gguf() const {
  return state_->gguf;
}
const ModelConfig& Checkpoint::config() const {
  return state_->config;
}
const GenerationConfig& Checkpoint::generation_config() const {
  return state_->generation;
}
const TensorReader& Checkpoint::tensors() const {
  return *state_->tensors;
}
const PrecisionPlan& Checkpoint::stored_plan() const {
  return state_->quantization.plan;
}
std::string_view Checkpoint::dialect() const {
  return state_->quantization.dialect;
}
const std::vector<std::string>& Checkpoint::notes() const {
  return state_->notes;
}

Result<StoredLinear> Checkpoint::linear(std::string_view module) const {
  const auto at = state_->modules.find(module);
  OCTAVO_CHECK(at != state_->modules.end(), "no linear module {}", module);
  const std::lock_guard lock(state_->mutex);
  return read_stored_linear(at->second, state_->quantization, state_->config, *state_->tensors, state_->used,
                            state_->notes);
}

Result<KvScales> Checkpoint::kv_scales(int layer) const {
  const std::lock_guard lock(state_->mutex);
  return read_kv_scales(layer, state_->quantization, state_->config, *state_->tensors, state_->used, state_->notes);
}

const KvCalibration* Checkpoint::kv_calibration() const {
  return state_->kv_calibration ? &*state_->kv_calibration : nullptr;
}

Result<void> Checkpoint::use_kv_calibration(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(KvCalibration calibration, read_kv_calibration(path, state_->config));
  for (size_t i = 0; i < calibration.layers.size(); ++i) {
    const KvCalibration::Layer& layer = calibration.layers[i];
    KvPlan& kv = state_->quantization.plan.kv[i];
    if (!layer.k.empty()) {
      OCTAVO_ASSIGN(const KvSide side, parse_kv_side(layer.k, KvPart::kK));
      kv.k = side.format, kv.k_options = side.options;
    }
    if (!layer.v.empty()) {
      OCTAVO_ASSIGN(const KvSide side, parse_kv_side(layer.v, KvPart::kV));
      kv.v = side.format, kv.v_options = side.options;
    }
    if (!layer.k.empty() || !layer.v.empty()) kv.reason = path.filename().string();
  }
  state_->notes.push_back(fmt::format("KV calibration: {}, {} tokens, {}", path.filename().string(), calibration.tokens,
                                      calibration.kv_cache.empty() ? "values only" : calibration.kv_cache));
  state_->kv_calibration = std::move(calibration);
  return {};
}

Result<const TensorEntry*> Checkpoint::entry(std::string_view name, const Shape& shape) const {
  const TensorEntry* found = state_->tensors->find(name);
  if (found == nullptr)
    return fail({.what = "tensor is missing", .where = state_->where(name), .expected = shape_text(shape)});
  if (found->shape != shape)
    return fail({.what = "tensor has the wrong shape",
                 .where = state_->where(name),
                 .found = shape_text(found->shape),
                 .expected = shape_text(shape),
                 .remedy = "check that config.json belongs to these weights"});
  const std::lock_guard lock(state_->mutex);
  state_->used.emplace(name);
  return found;
}

Result<std::vector<float>> Checkpoint::wide(std::string_view name, const Shape& shape) const {
  OCTAVO_ASSIGN(const TensorEntry* found, entry(name, shape));
  if (found->plain && !is_wide_element(found->plain->element))
    return fail({.what = "tensor has the wrong type",
                 .where = state_->where(name),
                 .found = found->stored_type,
                 .expected = "BF16, F16 or F32"});
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  const int64_t rows = shape.size() < 2 || shape.back() == 0 ? 1 : count / shape.back();
  std::vector<float> values(static_cast<size_t>(count));
  OCTAVO_TRY(state_->tensors->read_f32(*found, 0, rows, values));
  for (size_t i = 0; i < values.size(); ++i)
    if (!is_finite(values[i]))
      return fail({.what = "tensor holds a NaN or an infinity",
                   .where = state_->where(name),
                   .found = fmt::format("{} at element {}", values[i], i),
                   .expected = "finite values"});
  return values;
}

Result<std::vector<Checkpoint::Unused>> Checkpoint::unused() const {
  std::vector<Unused> extras;
  const std::lock_guard lock(state_->mutex);
  for (const TensorEntry& entry : state_->tensors->entries()) {
    if (state_->used.contains(entry.name)) continue;
    std::string why = known_extra(entry.name, state_->config);
    if (why.empty())
      return fail({.what = "nothing uses a tensor of the checkpoint",
                   .where = fmt::format("{}, tensor {}",
                                        (state_->gguf ? state_->path : state_->path / entry.file).string(), entry.name),
                   .found = fmt::format("{} {}", entry.stored_type, shape_text(entry.shape)),
                   .expected = fmt::format("the tensors of a {} model as config.json describes it",
                                           state_->config.model_type)});
    extras.push_back({entry.name, std::move(why)});
  }
  return extras;
}

}  // namespace octavo
