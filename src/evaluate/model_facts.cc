#include "evaluate/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "evaluate/item_log.h"
#include "precision/kv_format.h"

namespace octavo {
namespace {

bool is_model_file(const std::filesystem::path& file) {
  constexpr std::array<std::string_view, 6> kEndings = {".safetensors", ".gguf", ".json", ".model", ".jinja", ".txt"};
  return std::find(kEndings.begin(), kEndings.end(), file.extension().string()) != kEndings.end();
}

// All fields: what describe() leaves out can change results too.
std::string format_text(const TensorFormat& f) {
  return fmt::format("{} {} {}x{} {} {} {}", element_name(f.element), static_cast<int>(f.granularity), f.block_rows,
                     f.block_cols, element_name(f.scale), static_cast<int>(f.scale_time), f.zero_points);
}

}  // namespace

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
      if (entry.is_regular_file(error) && is_model_file(entry.path())) add(entry.path());
  }
  std::sort(facts.begin(), facts.end());
  return text_hash(facts);
}

std::string plan_fingerprint(const PrecisionPlan& plan, const Checkpoint& checkpoint) {
  std::vector<std::string> facts;
  for (const auto& [module, linear] : plan.linears)
    facts.push_back(fmt::format("{}: {}, {}, {}", module, format_text(linear.weight), format_text(linear.activation),
                                linear.outliers));
  for (const KvPlan& kv : plan.kv)
    facts.push_back(fmt::format("{}: {}, {}", kv_name(kv), format_text(kv.k), format_text(kv.v)));
  if (const KvCalibration* calibration = checkpoint.kv_calibration())
    facts.push_back(kv_calibration_text(*calibration, checkpoint.config()));
  return text_hash(facts);
}

std::string count_text(const std::map<std::string, int64_t>& counts) {
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [format, count] : sorted) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", format, count);
  return text;
}

std::string kv_cache_name(const PrecisionPlan& plan) {
  std::map<std::string, int64_t> counts;
  for (const KvPlan& kv : plan.kv) ++counts[kv_name(kv)];
  return counts.size() == 1 ? counts.begin()->first : count_text(counts);
}

}  // namespace octavo
