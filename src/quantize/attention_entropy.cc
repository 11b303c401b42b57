#include "quantize/attention_entropy.h"

#include <algorithm>
#include <cmath>

#include "formats/tensor.h"

namespace octavo {
namespace {

double row_entropy(std::span<const float> scores, double temperature) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0, weighted = 0;
  for (const float s : scores) {
    const double x = temperature * (static_cast<double>(s) - most), e = std::exp(x);
    sum += e;
    weighted += e * x;
  }
  return std::log(sum) - weighted / sum;
}

float round_element(ElementType element, float value) {
  std::byte code[4] = {};
  store_element(element, code, 0, value);
  return load_element(element, code, 0);
}

}  // namespace

void round_key(const KeyRounding& rounding, int64_t position, int64_t kv_head, float* key) {
  const int64_t n = rounding.head_dim, first = kv_head * n;
  const KvCalibration::Channels& channels = rounding.channels;
  const auto zero = [&](int64_t d) { return channels.zeros[static_cast<size_t>(first + d)]; };
  const auto scale_of = [&](int64_t d) { return channels.scales[static_cast<size_t>(first + d)]; };
  if (rounding.options.channels)
    for (int64_t d = 0; d < n; ++d) key[d] = (key[d] - zero(d)) / scale_of(d);
  const bool wide = position < rounding.options.wide_tokens;
  const ElementType element = wide ? ElementType::kBf16 : rounding.format.element;
  float scale = 1;
  if (!wide && rounding.format.scaled() && !rounding.scales.empty()) {
    scale = rounding.scales[static_cast<size_t>(kv_head)];
  } else if (!wide && rounding.format.scaled()) {
    float amax = 0;
    for (int64_t d = 0; d < n; ++d) amax = std::max(amax, std::fabs(key[d]));
    scale = scale_from_amax(amax, rounding.format);
  }
  for (int64_t d = 0; d < n; ++d) key[d] = round_element(element, key[d] / scale) * scale;
  if (rounding.options.channels)
    for (int64_t d = 0; d < n; ++d) key[d] = key[d] * scale_of(d) + zero(d);
}

void AttentionEntropy::add(const ModelConfig& config, std::span<const int64_t> positions,
                           std::span<const float> queries, std::span<const float> keys, ThreadPool& pool) {
  const int64_t hd = config.head_dim, heads = config.num_heads, group = heads / config.num_kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(hd));
  const size_t first = rows_.size();
  rows_.resize(first + positions.size() * static_cast<size_t>(heads));
  pool.parallel_items(static_cast<int64_t>(positions.size()) * heads, [&](int64_t item, int) {
    const int64_t i = item / heads, head = item % heads, tokens = positions[static_cast<size_t>(i)] + 1;
    const float* q = queries.data() + (i * heads + head) * hd;
    std::vector<float>& row = rows_[first + static_cast<size_t>(item)];
    row.resize(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
      const float* k = keys.data() + (t * config.num_kv_heads + head / group) * hd;
      float sum = 0;
      for (int64_t d = 0; d < hd; ++d) sum += q[d] * k[d];
      row[static_cast<size_t>(t)] = sum * scale;
    }
  });
}

double AttentionEntropy::mean(double temperature, ThreadPool& pool) const {
  std::vector<double> each(rows_.size());
  pool.parallel_items(static_cast<int64_t>(rows_.size()), [&](int64_t i, int) {
    each[static_cast<size_t>(i)] = row_entropy(rows_[static_cast<size_t>(i)], temperature);
  });
  double sum = 0;
  for (const double entropy : each) sum += entropy;
  return rows_.empty() ? 0 : sum / static_cast<double>(rows_.size());
}

double AttentionEntropy::temperature_for(double entropy, ThreadPool& pool) const {
  // Entropy falls as the temperature rises.
  double low = 0.5, high = 2.0;
  for (int step = 0; step < 24; ++step) {
    const double middle = 0.5 * (low + high);
    (mean(middle, pool) > entropy ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace octavo
