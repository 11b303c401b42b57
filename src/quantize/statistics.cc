#include "quantize/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "numerics/bits.h"

namespace octavo {
namespace {

// Bins of one thread: all codes of the sign-less bits, NaN and infinity included.
struct Partial {
  std::vector<uint64_t> bins = std::vector<uint64_t>(size_t{1} << (31 - LogHistogram::kShift));
  uint64_t infinities = 0;
  std::vector<uint32_t> channels;  // largest finite magnitude, as bits
};

constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

template <class Load>
void add_rows(Partial& partial, int64_t begin, int64_t end, int64_t cols, Load magnitude_at) {
  for (int64_t r = begin; r < end; ++r) {
    uint32_t* channels = partial.channels.data();
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t bits = magnitude_at(r, c);
      channels[c] = std::max(channels[c], bits < kInfinity ? bits : 0u);
    }
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t bits = magnitude_at(r, c);
      ++partial.bins[bits >> LogHistogram::kShift];
      if (bits == kInfinity) [[unlikely]]
        ++partial.infinities;
    }
  }
}

}  // namespace

double LogHistogram::bin_begin(int bin) {
  return bin >= kBins ? 0x1p128 : bits_float(static_cast<uint32_t>(bin) << kShift);
}

void LogHistogram::merge(const LogHistogram& other) {
  for (size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
  nans_ += other.nans_;
  infinities_ += other.infinities_;
}

uint64_t LogHistogram::finite() const {
  uint64_t total = 0;
  for (const uint64_t count : bins_) total += count;
  return total;
}

double LogHistogram::quantile(double q) const {
  const double wanted = q * static_cast<double>(finite());
  double seen = 0;
  double result = 0;
  for (int i = 0; i < kBins; ++i) {
    const auto count = static_cast<double>(bins_[static_cast<size_t>(i)]);
    if (count == 0) continue;
    const double begin = bin_begin(i), width = bin_begin(i + 1) - begin;
    result = i == 0 ? 0 : begin + width * std::clamp((wanted - seen) / count, 0.0, 1.0);
    if (seen + count >= wanted) return result;
    seen += count;
  }
  return result;
}

double LogHistogram::share_above(double limit) const {
  double above = 0;
  for (int i = 1; i < kBins; ++i) {
    const auto count = static_cast<double>(bins_[static_cast<size_t>(i)]);
    const double begin = bin_begin(i), end = bin_begin(i + 1);
    above += count * std::clamp((end - limit) / (end - begin), 0.0, 1.0);
  }
  const uint64_t total = finite();
  return total == 0 ? 0 : above / static_cast<double>(total);
}

double LogHistogram::share_below(double limit) const {
  double below = 0, total = 0;
  for (int i = 1; i < kBins; ++i) {
    const auto count = static_cast<double>(bins_[static_cast<size_t>(i)]);
    const double begin = bin_begin(i), end = bin_begin(i + 1);
    below += count * std::clamp((limit - begin) / (end - begin), 0.0, 1.0);
    total += count;
  }
  return total == 0 ? 0 : below / total;
}

void ValueStatistics::add(ElementType element, const std::byte* rows, int64_t num_rows, int64_t stride_bytes,
                          ThreadPool& pool) {
  OCTAVO_CHECK(element == ElementType::kBf16 || element == ElementType::kF32, "{} values", element_name(element));
  const int64_t cols = channels();
  std::vector<Partial> partials(static_cast<size_t>(pool.size()));
  pool.parallel_for(num_rows, 64, [&](int64_t begin, int64_t end, int thread) {
    Partial& partial = partials[static_cast<size_t>(thread)];
    partial.channels.resize(static_cast<size_t>(cols));
    if (element == ElementType::kBf16)
      add_rows(partial, begin, end, cols, [&](int64_t r, int64_t c) {
        uint16_t half;
        std::memcpy(&half, rows + r * stride_bytes + c * 2, sizeof half);
        return (static_cast<uint32_t>(half) << 16) & kMagnitude;
      });
    else
      add_rows(partial, begin, end, cols, [&](int64_t r, int64_t c) {
        uint32_t bits;
        std::memcpy(&bits, rows + r * stride_bytes + c * 4, sizeof bits);
        return bits & kMagnitude;
      });
  });
  for (const Partial& partial : partials) {
    for (size_t i = 0; i < histogram_.bins_.size(); ++i) histogram_.bins_[i] += partial.bins[i];
    for (size_t i = histogram_.bins_.size(); i < partial.bins.size(); ++i) histogram_.nans_ += partial.bins[i];
    histogram_.nans_ -= partial.infinities;
    histogram_.infinities_ += partial.infinities;
    for (size_t c = 0; c < partial.channels.size(); ++c)
      channel_amax_[c] = std::max(channel_amax_[c], bits_float(partial.channels[c]));
  }
}

void ValueStatistics::merge(const ValueStatistics& other) {
  OCTAVO_CHECK(channels() == other.channels(), "{} and {} channels", channels(), other.channels());
  histogram_.merge(other.histogram_);
  for (size_t c = 0; c < channel_amax_.size(); ++c)
    channel_amax_[c] = std::max(channel_amax_[c], other.channel_amax_[c]);
}

void ValueStatistics::restore(const Counts& counts, std::vector<float> channel_amax) {
  OCTAVO_CHECK(counts.first_bin + counts.bins.size() <= LogHistogram::kBins, "{} bins from {} on", counts.bins.size(),
               counts.first_bin);
  histogram_ = LogHistogram();
  std::copy(counts.bins.begin(), counts.bins.end(),
            histogram_.bins_.begin() + static_cast<std::ptrdiff_t>(counts.first_bin));
  histogram_.nans_ = counts.nans;
  histogram_.infinities_ = counts.infinities;
  channel_amax_ = std::move(channel_amax);
}

float ValueStatistics::amax() const {
  return channel_amax_.empty() ? 0.0f : *std::max_element(channel_amax_.begin(), channel_amax_.end());
}

std::string place_name(int layer, LinearInput input) {
  switch (input) {
    case LinearInput::kQkv:
      return fmt::format("model.layers.{}.qkv_input", layer);
    case LinearInput::kO:
      return fmt::format("model.layers.{}.o_input", layer);
    case LinearInput::kGateUp:
      return fmt::format("model.layers.{}.gate_up_input", layer);
    case LinearInput::kDown:
      return fmt::format("model.layers.{}.down_input", layer);
    case LinearInput::kHead:
      break;
  }
  return "lm_head.input";
}

std::string kv_place_name(int layer, bool key, int64_t head) {
  return fmt::format("model.layers.{}.{}_cache.{}", layer, key ? "k" : "v", head);
}

}  // namespace octavo
