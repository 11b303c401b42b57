// What calibration sees of activations: per place a log-scale histogram of magnitudes that merges exactly, the largest
// magnitude of every channel, and how often values are NaN or infinite.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "models/layers/decoder_layer.h"
#include "parallel/thread_pool.h"

namespace octavo {

// Counts of magnitudes in bins of 1/16 octave: bin i holds the FP32 values whose bits without sign, shifted right by
// 19, are i. Bin 0 holds zero (and subnormals below 2^-130). NaN and infinity are counted apart.
class LogHistogram {
 public:
  static constexpr int kShift = 19, kBins = 0x7F800000 >> kShift;

  LogHistogram() : bins_(kBins) {}
  void merge(const LogHistogram& other);

  uint64_t finite() const;  // number of finite values
  uint64_t nans() const { return nans_; }
  uint64_t infinities() const { return infinities_; }
  const std::vector<uint64_t>& bins() const { return bins_; }
  // The magnitude below which a share `q` of the finite values lies, interpolated in its bin; 0 without values.
  double quantile(double q) const;
  // Share of the finite values above `limit`; share of the finite values other than 0 that lie below `limit`. By bins,
  // a bin that the limit cuts counts in proportion.
  double share_above(double limit) const;
  double share_below(double limit) const;
  static double bin_begin(int bin);  // bin_begin(kBins) = 2^128

  bool operator==(const LogHistogram&) const = default;

 private:
  friend class ValueStatistics;
  std::vector<uint64_t> bins_;
  uint64_t nans_ = 0, infinities_ = 0;
};

class ValueStatistics {
 public:
  explicit ValueStatistics(int64_t channels = 0) : channel_amax_(static_cast<size_t>(channels)) {}

  // Rows of plain BF16 or FP32 values, `channels` columns each.
  void add(ElementType element, const std::byte* rows, int64_t num_rows, int64_t stride_bytes, ThreadPool& pool);
  void merge(const ValueStatistics& other);
  // As read from a file: `bins` from bin `first_bin` on.
  struct Counts {
    uint64_t first_bin;
    std::vector<uint64_t> bins;
    uint64_t nans, infinities;
  };
  void restore(const Counts& counts, std::vector<float> channel_amax);

  const LogHistogram& histogram() const { return histogram_; }
  const std::vector<float>& channel_amax() const { return channel_amax_; }
  float amax() const;  // of the finite values
  int64_t channels() const { return static_cast<int64_t>(channel_amax_.size()); }
  bool damaged() const { return histogram_.nans_ + histogram_.infinities_ > 0; }

  bool operator==(const ValueStatistics&) const = default;

 private:
  template <class Word>
  void add_words(const std::byte* rows, int64_t num_rows, int64_t stride_bytes, ThreadPool& pool);

  LogHistogram histogram_;
  std::vector<float> channel_amax_;
};

// Of the whole model, by place: "model.layers.3.qkv_input", ..., "model.layers.3.k_cache.2" (KV head 2),
// "model.layers.3.router_input", "model.layers.3.experts.7.down_input", "lm_head.input".
using StatisticsMap = std::map<std::string, ValueStatistics>;
std::string place_name(const LinearPlace& place);
std::string kv_place_name(int layer, bool key, int64_t head);

}  // namespace octavo
