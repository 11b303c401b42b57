#include "quantize/dry_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <numeric>
#include <string>

#include "checkpoint/output_folder.h"
#include "quantize/quantizer.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFewSamples = 4, kFewTokens = 4096;  // of the trial, at least

// The process's largest resident memory since the last call; since its start where the system keeps no other.
int64_t take_peak_memory() {
  std::ifstream status("/proc/self/status");
  int64_t kilobytes = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) {
      const size_t digit = line.find_first_of("0123456789");
      if (digit != std::string::npos) std::from_chars(line.data() + digit, line.data() + line.size(), kilobytes);
    }
  if (const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC); fd >= 0) {
    [[maybe_unused]] const ssize_t reset = write(fd, "5", 1);
    close(fd);
  }
  return kilobytes * 1024;
}

// The longest few samples: they show what buffers of a sample's length take. There is text: a set is never empty.
CalibrationSet few_of(const CalibrationSet& samples) {
  std::vector<size_t> order(samples.samples.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return samples.samples[a].size() > samples.samples[b].size(); });
  const auto longest = std::ssize(samples.samples[order[0]]);
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(std::max(kFewSamples, kFewTokens / longest))));
  CalibrationSet few;
  for (const size_t sample : order) few.samples.push_back(samples.samples[sample]);
  return few;
}

// Histograms of all places, which stay in memory behind the first pass.
int64_t statistics_bytes(const ModelConfig& c) {
  const int64_t histogram = LogHistogram::kBins * static_cast<int64_t>(sizeof(uint64_t));
  int64_t bytes = 0;
  for (int layer = 0; layer < static_cast<int>(c.num_layers); ++layer) {
    for (const LinearPlace& place : layer_places(c, layer)) bytes += histogram + 4 * input_cols(c, place);
    bytes += 2 * c.num_kv_heads * histogram;
  }
  return bytes;
}

}  // namespace

Result<QuantizeEstimate> estimate_quantization(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                               const QuantizeOptions& options) {
  const auto start = Clock::now();
  const std::function<void(const QuantizeProgress&)> silent;
  OCTAVO_TRY(check_output(checkpoint.path(), out));
  OCTAVO_ASSIGN(const QuantizeSource source, QuantizeSource::open(checkpoint, options));
  Quantizer quantizer(source, options, silent);
  OCTAVO_TRY(quantizer.prepare());
  OCTAVO_TRY(OutputFolder::check_free(out));
  OCTAVO_TRY(quantizer.check_work(out));
  OCTAVO_ASSIGN(const DiskNeed need, quantizer.disk_need(out));
  OCTAVO_TRY(check_space(out, need.free_space()));
  QuantizeEstimate estimate;
  estimate.output_bytes = quantizer.bytes_after();
  estimate.disk_bytes = need.free_space();
  estimate.spilled_bytes = need.spilled;
  estimate.memory_bytes = take_peak_memory();
  const double prepared = std::chrono::duration<double>(Clock::now() - start).count();

  CalibrationSet few;
  double share = 1;  // of the samples' slabs that the trial holds
  if (quantizer.samples()) {
    estimate.samples = std::ssize(quantizer.samples()->samples);
    estimate.tokens = quantizer.samples()->tokens();
    few = few_of(*quantizer.samples());
    share = static_cast<double>(few.samples.size()) / static_cast<double>(estimate.samples);
  }
  const int64_t layers = checkpoint.config().num_layers;
  const int64_t statistics = options.calibrate ? statistics_bytes(checkpoint.config()) : 0;
  const auto phase = [&](int64_t held) {
    const double rest = static_cast<double>(held) * (1 / share - 1);
    estimate.memory_bytes =
        std::max(estimate.memory_bytes, take_peak_memory() + static_cast<int64_t>(rest) + (held == 0 ? statistics : 0));
  };
  // Of the samples as much is spilled as in the whole run.
  const int64_t limit = options.calibrate ? options.calibrate->memory_limit : 0;
  const auto scaled_limit = static_cast<int64_t>(static_cast<double>(limit) * share);
  const int64_t copied = quantizer.copied_bytes();
  OCTAVO_ASSIGN(const TrialTimes times, quantizer.try_out(out, few, scaled_limit, phase));
  if (quantizer.samples()) {
    const double all = static_cast<double>(estimate.tokens) / static_cast<double>(times.tokens),
                 fitted = static_cast<double>(CalibrationPass::fit_tokens(*quantizer.samples())) /
                          static_cast<double>(times.fit_tokens);
    estimate.calibration_seconds =
        static_cast<double>(layers) *
            (all * (times.samples + times.kv_samples) + fitted * times.fit + times.weights + times.kv_weights) +
        all * times.head_samples + times.head_weights;
  }
  if (options.kv && options.kv->refit_temperature)
    estimate.memory_bytes += KvCalibrator::refit_bytes(checkpoint.config(), *quantizer.samples()) -
                             KvCalibrator::refit_bytes(checkpoint.config(), few);
  estimate.seconds = prepared + estimate.calibration_seconds + static_cast<double>(layers) * times.write_layer +
                     times.write_head + static_cast<double>(copied) * times.copy;
  return estimate;
}

}  // namespace octavo
