// What a report says of a model and its plan.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "evaluate/accept/accept_parts.h"

namespace octavo {
namespace {

// "fp8_e4m3 per row (210), bf16 (1)": the commonest first.
std::string count_formats(const std::map<std::string, int64_t>& counts) {
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [format, count] : sorted) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", format, count);
  return text;
}

}  // namespace

Json plan_summary(const PrecisionPlan& plan) {
  std::map<std::string, int64_t> weights, activations, kv;
  for (const auto& [module, linear] : plan.linears) {
    ++weights[linear.weight.describe()];
    ++activations[linear.activation.describe()];
  }
  for (const KvPlan& layer : plan.kv) {
    const std::string k = layer.k.describe(), v = layer.v.describe();
    ++kv[k == v ? k : fmt::format("K {}, V {}", k, v)];
  }
  return {{"scheme", plan.scheme},
          {"weights", count_formats(weights)},
          {"activations", count_formats(activations)},
          {"kv_cache", count_formats(kv)}};
}

std::string model_fingerprint(const std::filesystem::path& path) {
  std::vector<std::string> facts;
  const auto add = [&](const std::filesystem::path& file) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    const auto time = std::filesystem::last_write_time(file, error).time_since_epoch().count();
    facts.push_back(fmt::format("{} {} {}", file.filename().string(), size, time));
  };
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    add(path);
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (entry.is_regular_file(error)) add(entry.path());
  }
  std::sort(facts.begin(), facts.end());
  return text_hash(facts);
}

std::string one_line(const Error& error) {
  std::string text = error.what;
  if (!error.where.empty()) text += " (" + error.where + ")";
  if (!error.found.empty()) text += "; found " + error.found;
  if (!error.expected.empty()) text += "; expected " + error.expected;
  if (!error.remedy.empty()) text += "; " + error.remedy;
  return text;
}

}  // namespace octavo
