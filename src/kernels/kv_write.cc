#include "kernels/kv_write.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/tensor.h"
#include "numerics/bits.h"

namespace octavo {
namespace {

constexpr float kRescaleMargin = 0.9f;

float read_float(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float largest_magnitude(const float* x, int n) {
  uint32_t most = 0;  // of the bits without sign: those of infinity and NaN are the largest
  for (int i = 0; i < n; ++i) most = std::max(most, float_bits(x[i]) & 0x7FFFFFFFu);
  return bits_float(std::min(most, 0x7F800000u));
}

// One side of a token: where its page keeps what.
struct SideView {
  const PagedKvLayer& kv;
  const KvSequence& sequence;
  size_t scales, magnitudes;
  float read(size_t offset, int64_t position, int head) const {
    const std::byte* page = kv.page(sequence.page_table[position / kPageTokens], head);
    return read_float(page + offset + static_cast<size_t>(position % kPageTokens) * sizeof(float));
  }
};

}  // namespace

void to_cache_space(const PagedKvLayer& kv, int num_heads, float* q, float* k) {
  const int hd = kv.layout.head_dim, group = num_heads / kv.num_kv_heads;
  if (kv.q_factors != nullptr)
    for (int h = 0; h < num_heads; ++h) {
      const float* factors = kv.q_factors + static_cast<int64_t>(h / group) * hd;
      float* row = q + static_cast<int64_t>(h) * hd;
      for (int d = 0; d < hd; ++d) row[d] = row[d] * factors[d];
    }
  if (kv.k_zeros != nullptr)
    for (int i = 0; i < kv.num_kv_heads * hd; ++i) k[i] = (k[i] - kv.k_zeros[i]) * kv.k_inverses[i];
}

const float* given_scale(ElementType element, const float* given, const float* values, int count) {
  static constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  if (given == nullptr || element != ElementType::kInt8) return given;
  for (int i = 0; i < count; ++i)
    if (is_nan(values[i])) return &kPoison;
  return given;
}

void store_wide(const PagedKvLayer& kv, int32_t first_page, int head, int64_t position, const float* k,
                const float* v) {
  const int hd = kv.layout.head_dim;
  std::byte* base = kv.wide_tokens(first_page, head);
  const auto put = [&](const float* x, int64_t token) {
    for (int d = 0; d < hd; ++d) store_element(ElementType::kBf16, base, static_cast<size_t>(token * hd + d), x[d]);
  };
  if (position < kv.k_wide) put(k, position);
  if (position < kv.v_wide) put(v, kv.k_wide + position);
}

void store_magnitudes(const PagedKvLayer& kv, std::byte* page, int slot, int head, const float* k, const float* v) {
  const int hd = kv.layout.head_dim;
  const float magnitudes[2] = {largest_magnitude(k + static_cast<int64_t>(head) * hd, hd),
                               largest_magnitude(v + static_cast<int64_t>(head) * hd, hd)};
  const size_t at = static_cast<size_t>(slot) * sizeof(float);
  std::memcpy(page + kv.layout.k_magnitudes_offset() + at, &magnitudes[0], sizeof(float));
  std::memcpy(page + kv.layout.v_magnitudes_offset() + at, &magnitudes[1], sizeof(float));
}

BlockScales::Side BlockScales::side(const PagedKvLayer& kv, const KvSequence& sequence, bool is_k) {
  Side side{.rescale = is_k ? kv.k_rescale : kv.v_rescale, .heads = kv.num_kv_heads, .first_block = 0, .scales = {}};
  if (side.rescale == 0) return side;
  const KvPageLayout& layout = kv.layout;
  const SideView view{kv, sequence, is_k ? layout.k_scales_offset() : layout.v_scales_offset(),
                      is_k ? layout.k_magnitudes_offset() : layout.v_magnitudes_offset()};
  const TensorFormat& format = is_k ? kv.k_format : kv.v_format;
  const float* stored = is_k ? kv.k_scales : kv.v_scales;
  OCTAVO_CHECK(stored != nullptr && layout.magnitudes, "a rescaled cache without its first scales");
  const int64_t r = side.rescale, wide = is_k ? kv.k_wide : kv.v_wide;
  side.first_block = sequence.position / r;
  const int64_t last_block = (sequence.position + sequence.num_rows - 1) / r;
  for (int64_t block = side.first_block; block <= last_block; ++block)
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      if (block * r < sequence.position) {  // begun by an earlier pass
        side.scales.push_back(view.read(view.scales, sequence.position - 1, head));
        continue;
      }
      float most = 0;
      for (int64_t t = std::max(wide, (block - 1) * r); t < block * r; ++t) {
        const float magnitude = view.read(view.magnitudes, t, head);
        if (is_finite(magnitude)) most = std::max(most, magnitude);
      }
      side.scales.push_back(block == 0 || most == 0 ? stored[head] : scale_from_amax(most / kRescaleMargin, format));
    }
  return side;
}

void count_clipped(const PagedKvLayer& kv, int64_t position, int head, const float* k, const float* v,
                   const BlockScales* scales) {
  if (kv.clipping == nullptr) return;
  const auto side = [&](const TensorFormat& format, const float* stored, const float* rescaled, int wide,
                        const float* values, std::atomic<uint64_t>& count) {
    if (stored == nullptr || !format.scaled() || position < wide) return;
    constexpr float kRounding = 1 + 1e-6f;  // of a scale that is the largest magnitude over the largest code
    const float scale = rescaled != nullptr ? *rescaled : stored[head];
    const float limit = scale * element_info(format.element).max * kRounding,
                most = largest_magnitude(values, kv.layout.head_dim);
    if (most > limit && is_finite(most)) count.fetch_add(1, std::memory_order_relaxed);
  };
  side(kv.k_format, kv.k_scales, scales == nullptr ? nullptr : scales->k(position, head), kv.k_wide, k, kv.clipping->k);
  side(kv.v_format, kv.v_scales, scales == nullptr ? nullptr : scales->v(position, head), kv.v_wide, v, kv.clipping->v);
}

BlockScales::BlockScales(const PagedKvLayer& kv, const KvSequence& sequence)
    : k_(side(kv, sequence, true)), v_(side(kv, sequence, false)) {}

}  // namespace octavo
