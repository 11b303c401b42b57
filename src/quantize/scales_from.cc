#include "quantize/scales_from.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "quantize/quantization_config.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

Result<void> check_same_modules(const ModelConfig& earlier, const ModelConfig& config,
                                const std::filesystem::path& path) {
  const std::vector<LinearModule> before = earlier.linear_modules(), now = config.linear_modules();
  const auto same = [](const LinearModule& a, const LinearModule& b) {
    return a.name == b.name && a.rows == b.rows && a.cols == b.cols;
  };
  if (before.size() == now.size() && std::equal(before.begin(), before.end(), now.begin(), same)) return {};
  return fail({.what = "the earlier model has other layers",
               .where = path.string(),
               .found = fmt::format("{} linear layers, hidden size {}", before.size(), earlier.hidden_size),
               .expected = fmt::format("{} linear layers, hidden size {}", now.size(), config.hidden_size),
               .remedy = "give the quantized copy of a model with the same shapes to --scales-from"});
}

// Statistics of transformed weights fit no others: the transforms stand in the report beside them.
Result<void> check_untransformed(const std::filesystem::path& report) {
  std::error_code ignored;
  if (!std::filesystem::exists(report, ignored)) return {};
  OCTAVO_ASSIGN(const std::string text, read_text_file(report));
  OCTAVO_ASSIGN(const Json json, parse_json(text, report.string()));
  if (!json.is_object() || !json.contains("transforms")) return {};
  return fail({.what = "the earlier model's weights were transformed, and its activations with them",
               .where = report.string(),
               .found = json["transforms"].dump(),
               .remedy = "calibrate the new model with the same options: leave out --scales-from"});
}

// "kv_cache_scheme" as the folder has it; ModelOpt's name for the same becomes one.
Result<std::string> read_kv_cache_scheme(const std::filesystem::path& folder) {
  for (const std::string_view name : {"config.json", "hf_quant_config.json"}) {
    const std::filesystem::path path = folder / name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    OCTAVO_ASSIGN(const std::string text, read_text_file(path));
    OCTAVO_ASSIGN(const Json json, parse_json(text, path.string()));
    for (const std::string_view key : {"quantization_config", "quantization"}) {
      const auto config = json.is_object() ? json.find(key) : json.end();
      if (!json.is_object() || config == json.end() || !config->is_object()) continue;
      if (const auto scheme = config->find("kv_cache_scheme"); scheme != config->end() && scheme->is_object())
        return scheme->dump();
      if (const auto algorithm = config->find("kv_cache_quant_algo"); algorithm != config->end() && *algorithm == "FP8")
        return stored_kv_cache_scheme().dump();
    }
  }
  return std::string();
}

Result<void> read_kv(const Checkpoint& checkpoint, EarlierScales& earlier) {
  if (const KvCalibration* calibration = checkpoint.kv_calibration()) earlier.kv_calibration = *calibration;
  for (int layer = 0; layer < static_cast<int>(checkpoint.config().num_layers); ++layer) {
    OCTAVO_ASSIGN(KvScales scales, checkpoint.kv_scales(layer));
    earlier.kv_scales.push_back(std::move(scales));
  }
  const auto none = [](const KvScales& scales) { return scales.k.empty() && scales.v.empty(); };
  if (std::all_of(earlier.kv_scales.begin(), earlier.kv_scales.end(), none)) earlier.kv_scales.clear();
  OCTAVO_ASSIGN(earlier.kv_cache_scheme, read_kv_cache_scheme(checkpoint.path()));
  return {};
}

// How far two magnitudes are apart, as a factor of at least 1.
double factor(double a, double b) {
  if (a == b) return 1;
  return a > 0 && b > 0 ? std::max(a / b, b / a) : INFINITY;
}

}  // namespace

Result<EarlierScales> read_earlier_scales(const std::filesystem::path& path, const ModelConfig& config) {
  EarlierScales earlier;
  earlier.path = path;
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    OCTAVO_TRY(check_untransformed(path.parent_path() / kStatisticsReportName));
    OCTAVO_ASSIGN(earlier.statistics, read_statistics(path));
    return earlier;
  }
  OCTAVO_TRY(check_untransformed(path / kStatisticsReportName));
  OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  OCTAVO_TRY(check_same_modules(checkpoint.config(), config, path));
  if (!is_written(checkpoint.dialect()))
    return fail({.what = "the earlier model is not quantized in a dialect that is written",
                 .where = path.string(),
                 .found = std::string(checkpoint.dialect()),
                 .expected = "one of " + written_dialects()});
  if (checkpoint.config().down_hadamard != config.down_hadamard)
    return fail({.what = "only one of the two models has its down_proj inputs transformed",
                 .where = (path / "config.json").string(),
                 .found = fmt::format("octavo_transforms: blocks of {}", checkpoint.config().down_hadamard),
                 .expected = fmt::format("blocks of {}, as the new model", config.down_hadamard),
                 .remedy = "calibrate the new model with the same options: leave out --scales-from"});
  for (const auto& [name, linear] : checkpoint.stored_plan().linears)
    if (linear.outliers > 0)
      return fail({.what = "the earlier model has outlier channels, which calibration finds for each model anew",
                   .where = path.string(),
                   .found = fmt::format("{} in {}", linear.outliers, name),
                   .remedy = "leave out --scales-from: give --scheme, --calibrate and --outliers"});
  earlier.plan = checkpoint.stored_plan();
  earlier.plan->notes.clear();
  earlier.dialect = checkpoint.dialect();
  for (const LinearModule& module : config.linear_modules()) {
    OCTAVO_ASSIGN(const StoredLinear stored, checkpoint.linear(module.name));
    if (stored.input_scale) earlier.input_scales[module.name] = *stored.input_scale;
  }
  OCTAVO_TRY(read_kv(checkpoint, earlier));
  if (std::filesystem::exists(path / kStatisticsName, ignored)) {
    OCTAVO_ASSIGN(earlier.statistics, read_statistics(path / kStatisticsName));
  }
  return earlier;
}

Result<void> check_statistics(const EarlierScales& earlier, const std::vector<LinearModule>& modules) {
  if (earlier.statistics.empty()) return {};
  const auto known = [&](const LinearModule& module) {
    const auto found = earlier.statistics.find(place_name(place_of(module)));
    return found != earlier.statistics.end() && found->second.channels() == module.cols;
  };
  if (std::any_of(modules.begin(), modules.end(), known)) return {};
  const auto& [place, values] = *earlier.statistics.begin();
  return fail({.what = "the statistics are of another model",
               .where = earlier.path.string(),
               .found = fmt::format("{} places, such as {} with {} channels", earlier.statistics.size(), place,
                                    values.channels()),
               .expected = fmt::format("{} with {} channels, and so on", place_name(place_of(modules.front())),
                                       modules.front().cols)});
}

std::vector<std::string> drift_notes(const StatisticsMap& before, const StatisticsMap& now) {
  if (before.empty()) return {"the earlier quantization has no calibration statistics: drift was not checked"};
  std::vector<std::string> notes;
  int compared = 0;
  for (const auto& [place, values] : now) {
    const auto found = before.find(place);
    if (found == before.end() || found->second.channels() != values.channels()) continue;
    ++compared;
    const double p_before = found->second.histogram().quantile(0.999), p_now = values.histogram().quantile(0.999);
    const double amax_before = found->second.amax(), amax_now = values.amax();
    // A handful of samples sees smaller extremes than many: only larger ones say something.
    const bool drifted = factor(p_before, p_now) > kDrift || amax_now > kDrift * amax_before;
    if (drifted)
      notes.push_back(fmt::format("{}: activations drifted (P99.9 {:.4g} -> {:.4g}, amax {:.4g} -> {:.4g})", place,
                                  p_before, p_now, amax_before, amax_now));
  }
  notes.push_back(notes.empty()
                      ? fmt::format("activations of {} places lie where the earlier calibration saw them", compared)
                      : fmt::format("{} of {} places drifted: calibrate anew", notes.size(), compared));
  return notes;
}

}  // namespace octavo
