#include "checkpoint/outliers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/dialect_rules.h"
#include "checkpoint/dialect_tensors.h"
#include "numerics/bits.h"

namespace octavo {
namespace {

Result<void> check_tensor(const TensorReader& tensors, const std::string& name, ElementType element,
                          const Shape& shape) {
  const TensorEntry* entry = tensors.find(name);
  if (entry != nullptr && entry->plain && entry->plain->element == element && entry->shape == shape) return {};
  return fail(
      {.what = entry == nullptr ? "outlier channels are missing" : "outlier channels of the wrong type or shape",
       .where = entry == nullptr ? name : tensor_where(*entry),
       .found = entry == nullptr ? "no such tensor" : entry->stored_type + " " + shape_text(entry->shape),
       .expected = fmt::format("{} {}", element_info(element).safetensors, shape_text(shape)),
       .remedy = "quantize the model again: octavo quantize --outliers"});
}

Error damaged(const TensorEntry& entry, std::string found, std::string expected) {
  return {.what = "outlier channels are damaged",
          .where = tensor_where(entry),
          .found = std::move(found),
          .expected = std::move(expected),
          .remedy = "quantize the model again: octavo quantize --outliers"};
}

}  // namespace

int64_t outlier_count(int64_t cols, double share) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(cols) * share), 1, cols);
}

std::string outlier_channels_name(const LinearModule& module) {
  return module.name + ".outlier_channels";
}
std::string outlier_weight_name(const LinearModule& module) {
  return module.name + ".outlier_weight";
}

Result<void> plan_outliers(const Json& config, std::string_view dialect, const std::vector<LinearModule>& modules,
                           const TensorReader& tensors, PrecisionPlan& plan) {
  const std::string path = "quantization_config.octavo_outliers";
  const Json* options = json_find(config, "octavo_outliers");
  if (options == nullptr) return {};
  const Json* share = options->is_object() ? json_find(*options, "share") : nullptr;
  const double value = share != nullptr && share->is_number() ? share->get<double>() : 0.0;
  if (!(value > 0 && value <= kMostOutliers))
    return json_fail("share of outlier channels is out of range", path, "share", share, "above 0, at most 0.1");
  if (dialect != "compressed-tensors")
    return fail({.what = "outlier channels in a dialect that has none",
                 .where = path,
                 .found = std::string(dialect),
                 .expected = "compressed-tensors"});
  int quantized = 0;
  for (const LinearModule& module : modules) {
    LinearPlan& linear = plan.linears.at(module.name);
    if (!linear.weight.scaled()) continue;
    linear.outliers = outlier_count(module.cols, value);
    OCTAVO_TRY(check_tensor(tensors, outlier_channels_name(module), ElementType::kInt32, {linear.outliers}));
    OCTAVO_TRY(check_tensor(tensors, outlier_weight_name(module), ElementType::kBf16, {module.rows, linear.outliers}));
    ++quantized;
  }
  plan.notes.push_back(
      fmt::format("outlier channels: {:g} % of the input channels of {} modules keep BF16 weights and wide activations",
                  100 * value, quantized));
  return {};
}

Result<StoredOutliers> read_outliers(const LinearModule& module, const TensorReader& tensors,
                                     std::set<std::string>& used) {
  const TensorEntry& channels = *tensors.find(outlier_channels_name(module));  // the plan was made from these tensors
  const TensorEntry& weight = *tensors.find(outlier_weight_name(module));
  StoredOutliers outliers;
  outliers.channels.resize(static_cast<size_t>(channels.shape[0]));
  std::memcpy(outliers.channels.data(), channels.plain->data.data(), outliers.channels.size() * sizeof(int32_t));
  int32_t previous = -1;
  for (const int32_t channel : outliers.channels) {
    if (channel <= previous || channel >= module.cols)
      return fail(damaged(channels,
                          previous < 0 ? fmt::format("{}", channel) : fmt::format("{} after {}", channel, previous),
                          fmt::format("ascending numbers from 0 to {}", module.cols - 1)));
    previous = channel;
  }
  outliers.weight.resize(outliers.channels.size() * static_cast<size_t>(module.rows));
  OCTAVO_TRY(tensors.read_f32(weight, 0, module.rows, outliers.weight));
  if (!std::all_of(outliers.weight.begin(), outliers.weight.end(), [](float value) { return is_finite(value); }))
    return fail(damaged(weight, "a NaN or an infinity", "finite values"));
  used.insert(channels.name);
  used.insert(weight.name);
  return outliers;
}

}  // namespace octavo
