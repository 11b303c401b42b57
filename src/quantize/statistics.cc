#include "quantize/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "numerics/bits.h"

namespace octavo {
namespace {

// Magnitudes as the bits of BF16 or FP32 without sign.
template <class Word>
struct Magnitude {
  static constexpr int kDropped = 32 - 8 * sizeof(Word);  // bits that FP32 has more
  static constexpr Word kAll = 0x7FFFFFFF >> kDropped, kInfinity = 0x7F800000 >> kDropped;
  static Word at(const std::byte* row, int64_t c) {
    Word bits;
    std::memcpy(&bits, row + c * static_cast<int64_t>(sizeof bits), sizeof bits);
    return bits & kAll;
  }
  static float value(Word bits) { return bits_float(static_cast<uint32_t>(bits) << kDropped); }
};

// largest[c] = max(largest[c], the row's value) over the finite ones; the largest of all, damaged ones included.
template <class Word>
Word raise_channels(const std::byte* __restrict row, int64_t cols, Word* __restrict largest) {
  Word highest = 0;
  for (int64_t c = 0; c < cols; ++c) {
    const Word bits = Magnitude<Word>::at(row, c), finite = bits < Magnitude<Word>::kInfinity ? bits : Word{0};
    highest = std::max(highest, bits);
    largest[c] = std::max(largest[c], finite);
  }
  return highest;
}

// Neighbours in a row are counted apart, side by side in memory: a count waits for the one before it in the same place,
// and (4 KiB aliasing) in the same place of another page.
constexpr int kApart = 4;
using Bin = std::array<uint32_t, kApart>;

template <class Word>
void count_row(const std::byte* row, int64_t cols, Bin* bins) {
  constexpr int kShift = LogHistogram::kShift - Magnitude<Word>::kDropped;
  int64_t c = 0;
  for (; c + kApart <= cols; c += kApart)
#pragma GCC unroll 4
    for (int i = 0; i < kApart; ++i) ++bins[Magnitude<Word>::at(row, c + i) >> kShift][static_cast<size_t>(i)];
  for (; c < cols; ++c) ++bins[Magnitude<Word>::at(row, c) >> kShift][0];
}

// What one thread has seen.
template <class Word>
struct Partial {
  static constexpr size_t kAllBins = size_t{1} << (31 - LogHistogram::kShift);  // NaN and infinity included
  std::array<Bin, kAllBins> bins{};
  uint64_t infinities = 0;
  std::vector<Word> channels;  // largest finite magnitude

  explicit Partial(int64_t cols) : channels(static_cast<size_t>(cols)) {}

  void add(const std::byte* row) {
    const int64_t cols = std::ssize(channels);
    if (raise_channels<Word>(row, cols, channels.data()) >= Magnitude<Word>::kInfinity) [[unlikely]]
      for (int64_t c = 0; c < cols; ++c) infinities += Magnitude<Word>::at(row, c) == Magnitude<Word>::kInfinity;
    count_row<Word>(row, cols, bins.data());
  }

  uint64_t count(size_t bin) const { return std::accumulate(bins[bin].begin(), bins[bin].end(), uint64_t{0}); }
};

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

template <class Word>
void ValueStatistics::add_words(const std::byte* rows, int64_t num_rows, int64_t stride_bytes, ThreadPool& pool) {
  std::vector<std::unique_ptr<Partial<Word>>> partials(static_cast<size_t>(pool.size()));
  pool.parallel_for(num_rows, 64, [&](int64_t begin, int64_t end, int thread) {
    auto& partial = partials[static_cast<size_t>(thread)];
    if (!partial) partial = std::make_unique<Partial<Word>>(channels());
    for (int64_t r = begin; r < end; ++r) partial->add(rows + r * stride_bytes);
  });
  for (const auto& partial : partials) {
    if (!partial) continue;
    for (size_t bin = 0; bin < LogHistogram::kBins; ++bin) histogram_.bins_[bin] += partial->count(bin);
    for (size_t bin = LogHistogram::kBins; bin < Partial<Word>::kAllBins; ++bin)
      histogram_.nans_ += partial->count(bin);
    histogram_.nans_ -= partial->infinities;
    histogram_.infinities_ += partial->infinities;
    for (size_t c = 0; c < channel_amax_.size(); ++c)
      channel_amax_[c] = std::max(channel_amax_[c], Magnitude<Word>::value(partial->channels[c]));
  }
}

void ValueStatistics::add(ElementType element, const std::byte* rows, int64_t num_rows, int64_t stride_bytes,
                          ThreadPool& pool) {
  OCTAVO_CHECK(element == ElementType::kBf16 || element == ElementType::kF32, "{} values", element_name(element));
  if (element == ElementType::kBf16)
    add_words<uint16_t>(rows, num_rows, stride_bytes, pool);
  else
    add_words<uint32_t>(rows, num_rows, stride_bytes, pool);
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

std::string place_name(const LinearPlace& place) {
  constexpr std::pair<LinearInput, std::string_view> kNames[] = {{LinearInput::kQkv, "qkv_input"},
                                                                 {LinearInput::kO, "o_input"},
                                                                 {LinearInput::kGateUp, "gate_up_input"},
                                                                 {LinearInput::kDown, "down_input"},
                                                                 {LinearInput::kRouter, "router_input"}};
  for (const auto& [input, name] : kNames) {
    if (input != place.input) continue;
    const std::string expert = place.expert < 0 ? "" : fmt::format("experts.{}.", place.expert);
    return fmt::format("model.layers.{}.{}{}", place.layer, expert, name);
  }
  return "lm_head.input";
}

std::string kv_place_name(int layer, bool key, int64_t head) {
  return fmt::format("model.layers.{}.{}_cache.{}", layer, key ? "k" : "v", head);
}

}  // namespace octavo
