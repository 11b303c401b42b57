#include "quantize/companions.h"

#include <algorithm>

namespace octavo {
namespace {

namespace fs = std::filesystem;

// Everything but weights, their index, and what describes a quantization that no longer holds.
bool is_companion(const fs::path& path) {
  const std::string name = path.filename().string(), extension = path.extension().string();
  for (const std::string_view other :
       {"config.json", "hf_quant_config.json", "quantize_config.json", "calibration.json", "octavo_kv.json"})
    if (name == other) return false;
  if (name.starts_with(".") || name.ends_with(".index.json")) return false;
  for (const std::string_view prefix : {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"})
    if (name.starts_with(prefix)) return true;
  return extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model" ||
         extension == ".tiktoken";
}

Error file_error(std::string what, const fs::path& where, const std::error_code& error) {
  return {.what = std::move(what), .where = where.string(), .found = error.message()};
}

}  // namespace

Result<std::vector<std::string>> list_companions(const fs::path& source) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(source, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && is_companion(it->path())) names.push_back(it->path().filename().string());
  }
  if (error) return fail(file_error("cannot list folder", source, error));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<std::string>> copy_companions(const fs::path& source, const fs::path& out) {
  OCTAVO_ASSIGN(std::vector<std::string> names, list_companions(source));
  std::error_code error;
  for (const std::string& name : names) {
    fs::copy_file(source / name, out / name, error);
    if (error) return fail(file_error("cannot copy file", out / name, error));
  }
  return names;
}

}  // namespace octavo
