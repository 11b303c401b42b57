#include "engine/serving_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

#include "engine/scheduler.h"
#include "models/dataflow.h"

namespace octavo {
namespace {

constexpr double kDefaultShare = 0.8;

std::optional<int64_t> first_number(std::string_view text) {
  int64_t value = 0;
  const size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The first number of a small file of the kernel, or of its line that starts with `key`.
std::optional<int64_t> kernel_number(const char* path, std::string_view key = {}) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return first_number(std::string_view(line).substr(key.size()));
  return std::nullopt;
}

}  // namespace

int64_t available_memory() {
  int64_t bytes = kernel_number("/proc/meminfo", "MemAvailable:").value_or(int64_t{1} << 20) << 10;
  const auto limit = kernel_number("/sys/fs/cgroup/memory.max"), used = kernel_number("/sys/fs/cgroup/memory.current");
  if (limit && used) {
    const int64_t file_cache = kernel_number("/sys/fs/cgroup/memory.stat", "inactive_file ").value_or(0);
    bytes = std::min(bytes, *limit - *used + file_cache);
  }
  return std::max<int64_t>(0, bytes);
}

Result<int64_t> plan_kv_cache_tokens(const Model& model, const ServingOptions& options) {
  const KvGeometry geometry = model.kv_geometry();
  // Every page may become the first of a text, which has its wide tokens beside it.
  const int64_t page = static_cast<int64_t>(geometry.page_bytes() + geometry.wide_bytes());
  const int64_t context = (model.config().context_length() + kPageTokens - 1) / kPageTokens;
  constexpr int64_t kMostPages = std::numeric_limits<int32_t>::max();
  const int64_t available = available_memory();
  const Decoder& decoder = model.decoder();
  const auto weights = static_cast<int64_t>(decoder.report().linear_bytes + decoder.report().embedding_bytes +
                                            decoder.report().norm_bytes +
                                            (decoder.greedy_head() != nullptr ? decoder.greedy_head()->bytes() : 0));
  const int64_t step = memory_plan(model.config(), model.plan(), 0, options.max_num_batched_tokens).scratch_bytes +
                       (options.max_num_seqs + SchedulerOptions{}.max_score_rows) * model.config().vocab_size * 4;
  if (options.kv_cache_tokens > 0) {
    const int64_t pages = (options.kv_cache_tokens - 1) / kPageTokens + 1;
    if (pages > kMostPages || pages > available / page)
      return fail({.what = "the KV cache is larger than the memory that is free",
                   .where = "kv_cache_tokens",
                   .found = fmt::format("{} tokens of {} bytes", options.kv_cache_tokens, page / kPageTokens),
                   .expected = fmt::format("at most {} tokens", available / page * kPageTokens)});
    if (options.memory_limit > 0 && weights + step + pages * page > options.memory_limit)
      return fail({.what = "weights and KV cache need more than the memory limit",
                   .where = "memory_limit",
                   .found = fmt::format("{} bytes", options.memory_limit),
                   .expected = fmt::format("weights {} + step {} + KV cache {}", weights, step, pages * page),
                   .remedy = "raise the limit, or ask for fewer tokens"});
    return pages * kPageTokens;
  }
  const int64_t bytes = options.memory_limit > 0
                            ? options.memory_limit - weights - step
                            : static_cast<int64_t>(kDefaultShare * static_cast<double>(available)) - step;
  const int64_t useful = std::min(options.max_num_seqs, options.max_num_batched_tokens) * context;
  const int64_t pages = std::min({bytes / page, useful, kMostPages});
  if (pages < 1)
    return fail({.what = "no memory is left for the KV cache",
                 .where = "memory_limit",
                 .found = fmt::format("{} bytes", options.memory_limit > 0 ? options.memory_limit : available),
                 .expected = fmt::format("weights {} + step {} + {} bytes for each {} tokens", weights, step, page,
                                         kPageTokens),
                 .remedy = "raise the limit, or choose a smaller KV format"});
  return pages * kPageTokens;
}

}  // namespace octavo
