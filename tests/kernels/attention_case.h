// A batch of sequences over a paged cache: everything an attention call needs, made from a few numbers.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/paged_cache.h"
#include "kernels/reference/quantize_row.h"
#include "numerics/bits.h"

namespace octavo::test {

inline constexpr ElementType kKvTypes[] = {ElementType::kF32, ElementType::kBf16, ElementType::kE4m3,
                                           ElementType::kE5m2, ElementType::kInt8};

// The last `rows` tokens of a context of `length` tokens.
struct SequenceCase {
  int64_t length = 0, rows = 0;
};

struct AttentionCase {
  ElementType k = ElementType::kE4m3, v = ElementType::kE4m3;
  int head_dim = 64, num_kv_heads = 2, group = 2;
  int64_t window = 0;
  bool random_codes = false;        // pages hold random codes (no NaN, no infinity) and scales near 0.01
  int least_code = 0;               // then: of at least this magnitude
  std::vector<float> given_scales;  // one per KV head, for K and V; empty: computed
  bool flush_to_zero = false;       // FTZ and DAZ are set while the kernel runs
  std::vector<SequenceCase> sequences;
  float q_deviation = 1.0f;
  std::function<void(int64_t token, float* k, float* v, int head_dim)> edit_kv;
  std::function<void(float* q, int head_dim)> edit_q;

  int64_t width() const { return static_cast<int64_t>(num_kv_heads) * group * head_dim; }

  std::string describe() const {
    return fmt::format("{} {} head_dim {} KV heads {} group {} window {}", element_name(k), element_name(v), head_dim,
                       num_kv_heads, group, window);
  }

  // Contents of sequence s, token t depend on (s, t) alone, so that chunks of one prompt see the same tokens.
  void fill(PagedCache& cache) const {
    std::vector<float> key(static_cast<size_t>(head_dim)), value(static_cast<size_t>(head_dim));
    for (size_t s = 0; s < sequences.size(); ++s)
      for (int64_t t = 0; t < sequences[s].length; ++t)
        for (int h = 0; h < num_kv_heads; ++h) {
          Random random(1000003 * (s + 1) + static_cast<uint64_t>(t * 31 + h));
          for (float& x : key) x = random.normal();
          for (float& x : value) x = random.normal();
          if (edit_kv) edit_kv(t, key.data(), value.data(), head_dim);
          std::byte* page = cache.layer().page(cache.table(s)[t / kPageTokens], h);
          reference::store_kv(key.data(), value.data(), cache.layer(), h, page, static_cast<int>(t % kPageTokens));
          if (random_codes) randomize(cache.layer().layout, page, static_cast<int>(t % kPageTokens), random);
        }
  }

  void randomize(const KvPageLayout& layout, std::byte* page, int slot, Random& random) const {
    const auto code = [&](ElementType type) {
      std::byte c{};
      do c = static_cast<std::byte>(random.next());
      while ((std::to_integer<int>(c) & 0x7F) < least_code ||
             (type != ElementType::kInt8 && !is_finite(load_element(type, &c, 0))));
      return c;
    };
    for (int d = 0; d < head_dim; ++d) {
      page[static_cast<size_t>(d / 2) * layout.k_line() + static_cast<size_t>(panel_offset_8bit(slot, d % 2))] =
          code(k);
      page[layout.v_offset() + static_cast<size_t>(slot / 2 * layout.v_panels() + d / 32) * layout.v_line() +
           static_cast<size_t>(panel_offset_8bit(d % 32, slot % 2))] = code(v);
    }
    const float scales[2] = {random.uniform(0.001f, 0.002f) / element_info(k).max, random.uniform(0.01f, 0.02f)};
    std::memcpy(page + layout.k_scales_offset() + static_cast<size_t>(slot) * 4, &scales[0], 4);
    std::memcpy(page + layout.v_scales_offset() + static_cast<size_t>(slot) * 4, &scales[1], 4);
  }

  std::vector<int64_t> lengths() const {
    std::vector<int64_t> all;
    for (const SequenceCase& s : sequences) all.push_back(s.length);
    return all;
  }

  // Output rows of the sequences one after the other.
  Activation run_into(const AttentionKernel& kernel, ThreadPool& pool, ActivationBuffer& buffer,
                      const TensorFormat& format) const {
    PagedCache cache(k, v, head_dim, num_kv_heads, lengths());
    if (!given_scales.empty()) cache.layer().k_scales = cache.layer().v_scales = given_scales.data();
    fill(cache);
    std::vector<KvSequence> batch;
    int64_t rows = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      batch.push_back({rows, sequences[s].rows, sequences[s].length - sequences[s].rows, cache.table(s)});
      rows += sequences[s].rows;
    }
    const int64_t stride = width() + 2L * num_kv_heads * head_dim;
    std::vector<float> q(static_cast<size_t>(rows * stride));
    for (size_t s = 0; s < sequences.size(); ++s)
      for (int64_t i = 0; i < batch[s].num_rows; ++i)
        for (int h = 0; h < num_kv_heads * group; ++h) {
          Random random(77 * (s + 1) + static_cast<uint64_t>((batch[s].position + i) * 64 + h) * 1000);
          float* at = q.data() + (batch[s].row_begin + i) * stride + static_cast<int64_t>(h) * head_dim;
          for (int d = 0; d < head_dim; ++d) at[d] = q_deviation * random.normal();
          if (edit_q) edit_q(at, head_dim);
        }
    AttentionCall call{.q = q.data(), .q_stride = stride, .num_heads = num_kv_heads * group, .head_dim = head_dim};
    call.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    call.window = window;
    call.sequences = batch.data();
    call.num_sequences = static_cast<int64_t>(batch.size());
    call.kv = cache.layer();
    call.output = buffer.resize(format, rows, width(), 0.01f);
    Scratch scratch;
    std::memset(scratch.get(0, 1 << 20), 0xFF, 1 << 20);  // kernels may not count on zeros
    const unsigned saved = _mm_getcsr();
    if (flush_to_zero) _mm_setcsr(saved | 0x8040);
    kernel.run(call, pool, scratch);
    _mm_setcsr(saved);
    return call.output;
  }

  std::vector<float> run(const AttentionKernel& kernel, int threads) const {
    ThreadPool pool(threads);
    ActivationBuffer buffer;
    const Activation out = run_into(kernel, pool, buffer, plain_format(ElementType::kF32));
    std::vector<float> values;
    for (int64_t r = 0; r < out.rows; ++r) {
      const auto* row = reinterpret_cast<const float*>(out.row(r));
      values.insert(values.end(), row, row + width());
    }
    return values;
  }
};

// Equal bits, any NaN for any NaN.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (float_bits(a[i]) != float_bits(b[i]) && !(is_nan(a[i]) && is_nan(b[i]))) return false;
  return true;
}

inline std::string first_difference(const std::vector<float>& want, const std::vector<float>& got) {
  for (size_t i = 0; i < std::min(want.size(), got.size()); ++i)
    if (float_bits(want[i]) != float_bits(got[i]) && !(is_nan(want[i]) && is_nan(got[i])))
      return fmt::format("value {}: {} instead of {}", i, got[i], want[i]);
  return fmt::format("{} and {} values", want.size(), got.size());
}

}  // namespace octavo::test
