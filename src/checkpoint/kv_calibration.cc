#include "checkpoint/kv_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/kv_calibration_parser.h"
#include "formats/tensor.h"

namespace octavo {
namespace {

constexpr int kVersion = 1;
constexpr size_t kMostBytes = size_t{256} << 20;

// One object of the file: typed access, errors that name the place.
class Object {
 public:
  Object(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  Error error(std::string_view key, std::string found, std::string expected) const {
    return {.what = "the KV calibration cannot be used",
            .where = fmt::format("{}, \"{}\"", where_, key),
            .found = std::move(found),
            .expected = std::move(expected),
            .remedy = "calibrate again: octavo quantize --calibrate FILE --kv TYPE"};
  }
  Result<const Json*> get(std::string_view key) const {
    const auto found = json_->is_object() ? json_->find(key) : json_->end();
    if (!json_->is_object() || found == json_->end()) return fail(error(key, "nothing", "a value"));
    return &*found;
  }
  Result<int64_t> integer(std::string_view key) const {
    OCTAVO_ASSIGN(const Json* value, get(key));
    if (!value->is_number_integer()) return fail(error(key, value->dump(), "an integer"));
    return value->get<int64_t>();
  }
  Result<std::string> text(std::string_view key) const {
    OCTAVO_ASSIGN(const Json* value, get(key));
    if (value->is_null()) return std::string();
    if (!value->is_string()) return fail(error(key, value->dump(), "a text, or null"));
    return value->get<std::string>();
  }
  // `count` finite numbers.
  Result<std::vector<float>> floats(std::string_view key, int64_t count) const {
    OCTAVO_ASSIGN(const Json* value, get(key));
    if (!value->is_array() || static_cast<int64_t>(value->size()) != count)
      return fail(error(key, value->is_array() ? fmt::format("{} values", value->size()) : value->dump(),
                        fmt::format("a list of {} numbers", count)));
    std::vector<float> numbers;
    for (const Json& item : *value) {
      const float number = item.is_number() ? static_cast<float>(item.get<double>()) : NAN;
      if (!std::isfinite(number)) return fail(error(key, item.dump(), "finite numbers"));
      numbers.push_back(number);
    }
    return numbers;
  }

 private:
  const Json* json_;
  std::string where_;
};

struct Shape3 {
  std::string_view name;
  int64_t value;
};

std::vector<Shape3> shape_of(const ModelConfig& c) {
  return {{"num_layers", c.num_layers},
          {"num_kv_heads", c.num_kv_heads},
          {"head_dim", c.head_dim},
          {"hidden_size", c.hidden_size},
          {"vocab_size", c.vocab_size}};
}

Result<void> check_model(const Object& file, const Json& model, const std::string& path, const ModelConfig& config) {
  const Object object(model, path + ", \"model\"");
  for (const auto& [name, value] : shape_of(config)) {
    OCTAVO_ASSIGN(const int64_t stored, object.integer(name));
    if (stored == value) continue;
    Error error = file.error("model", fmt::format("{} {}", name, stored), fmt::format("{} {}", name, value));
    error.what = "the KV calibration is of another model";
    return fail(std::move(error));
  }
  return {};
}

Result<KvCalibration::Layer> read_layer(const Object& object, const ModelConfig& config) {
  KvCalibration::Layer layer;
  OCTAVO_ASSIGN(layer.k, object.text("k"));
  OCTAVO_ASSIGN(layer.v, object.text("v"));
  for (const bool key : {true, false}) {
    const std::string& text = key ? layer.k : layer.v;
    if (text.empty()) continue;
    const auto side = parse_kv_side(text, key ? KvPart::kK : KvPart::kV);
    if (!side) return fail(object.error(key ? "k" : "v", side.error().found, side.error().expected));
  }
  OCTAVO_ASSIGN(layer.k_range, object.floats("k_range", config.num_kv_heads));
  OCTAVO_ASSIGN(layer.v_range, object.floats("v_range", config.num_kv_heads));
  for (const auto* ranges : {&layer.k_range, &layer.v_range})
    if (*std::min_element(ranges->begin(), ranges->end()) < 0)
      return fail(object.error(ranges == &layer.k_range ? "k_range" : "v_range", "a negative range", "magnitudes"));
  OCTAVO_ASSIGN(layer.k_min, object.floats("k_min", config.kv_size()));
  OCTAVO_ASSIGN(layer.k_max, object.floats("k_max", config.kv_size()));
  for (size_t i = 0; i < layer.k_min.size(); ++i)
    if (layer.k_min[i] > layer.k_max[i])
      return fail(object.error("k_min", fmt::format("{} at channel {}", layer.k_min[i], i),
                               fmt::format("at most k_max, {}", layer.k_max[i])));
  OCTAVO_ASSIGN(const Json* temperature, object.get("temperature"));
  layer.temperature = temperature->is_number() ? static_cast<float>(temperature->get<double>()) : 0.0f;
  if (!(layer.temperature >= 0.25f && layer.temperature <= 4.0f))
    return fail(object.error("temperature", temperature->dump(), "a factor from 0.25 to 4"));
  return layer;
}

}  // namespace

std::vector<float> KvCalibration::scales(size_t layer, bool key, const TensorFormat& format,
                                         const KvOptions& options) const {
  const std::vector<float>& ranges = key ? layers[layer].k_range : layers[layer].v_range;
  std::vector<float> scales(ranges.size(), 1.0f);
  if (options.channels) return scales;
  const float most = *std::max_element(ranges.begin(), ranges.end());
  for (size_t h = 0; h < ranges.size(); ++h)
    scales[h] = scale_from_amax(options.tensor_scale ? most : ranges[h], format);
  return scales;
}

KvCalibration::Channels KvCalibration::channels(size_t index, const TensorFormat& format) const {
  const Layer& layer = layers[index];
  Channels channels;
  for (size_t i = 0; i < layer.k_min.size(); ++i) {
    const float zero = 0.5f * layer.k_min[i] + 0.5f * layer.k_max[i];
    channels.zeros.push_back(zero);
    channels.scales.push_back(scale_from_amax(std::max(layer.k_max[i] - zero, zero - layer.k_min[i]), format));
  }
  return channels;
}

Result<KvCalibration> read_kv_calibration(const std::filesystem::path& path, const ModelConfig& config) {
  OCTAVO_ASSIGN(const std::string text, read_text_file(path, kMostBytes));
  return parse_kv_calibration(text, path.string(), config);
}

Result<KvCalibration> parse_kv_calibration(std::string_view text, const std::string& where, const ModelConfig& config) {
  OCTAVO_ASSIGN(const Json json, parse_json(text, where));
  const Object file(json, where);
  OCTAVO_ASSIGN(const int64_t version, file.integer("octavo_kv"));
  if (version != kVersion)
    return fail(file.error("octavo_kv", fmt::format("version {}", version), fmt::format("version {}", kVersion)));
  OCTAVO_ASSIGN(const Json* model, file.get("model"));
  OCTAVO_TRY(check_model(file, *model, where, config));
  KvCalibration calibration;
  OCTAVO_ASSIGN(calibration.kv_cache, file.text("kv_cache"));
  if (!calibration.kv_cache.empty())
    if (const auto known = parse_kv(calibration.kv_cache); !known)
      return fail(file.error("kv_cache", known.error().found, known.error().expected));
  OCTAVO_ASSIGN(calibration.estimator, file.text("estimator"));
  OCTAVO_ASSIGN(calibration.tokens, file.integer("tokens"));
  OCTAVO_ASSIGN(const Json* layers, file.get("layers"));
  if (!layers->is_array() || static_cast<int64_t>(layers->size()) != config.num_layers)
    return fail(file.error("layers", layers->is_array() ? fmt::format("{} layers", layers->size()) : layers->dump(),
                           fmt::format("a list of {} layers", config.num_layers)));
  for (size_t i = 0; i < layers->size(); ++i) {
    const Object object((*layers)[i], fmt::format("{}, layer {}", where, i));
    OCTAVO_ASSIGN(KvCalibration::Layer layer, read_layer(object, config));
    calibration.layers.push_back(std::move(layer));
  }
  return calibration;
}

std::string kv_calibration_text(const KvCalibration& calibration, const ModelConfig& config) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json json;
  json["octavo_kv"] = kVersion;
  for (const auto& [name, value] : shape_of(config)) json["model"][std::string(name)] = value;
  json["kv_cache"] = text_or_null(calibration.kv_cache);
  json["estimator"] = calibration.estimator;
  json["tokens"] = calibration.tokens;
  // A line per layer.
  std::string text = json.dump(1), layers;
  text.resize(text.size() - 2);
  for (const KvCalibration::Layer& layer : calibration.layers) {
    const Json line = {{"k", text_or_null(layer.k)}, {"v", text_or_null(layer.v)}, {"temperature", layer.temperature},
                       {"k_range", layer.k_range},   {"v_range", layer.v_range},   {"k_min", layer.k_min},
                       {"k_max", layer.k_max}};
    layers += fmt::format("{}\n  {}", layers.empty() ? "" : ",", line.dump());
  }
  return fmt::format("{},\n \"layers\": [{}\n ]\n}}\n", text, layers);
}

}  // namespace octavo
