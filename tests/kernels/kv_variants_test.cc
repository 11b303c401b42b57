// Variants of the KV cache, written and read by every row: channel scales, wide tokens, rescaling.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention.h"
#include "kernels/paged_cache.h"
#include "kernels/producers.h"
#include "numerics/bits.h"

namespace octavo {
namespace {

using test::PagedCache;

constexpr int kHeadDim = 64, kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads;
constexpr int64_t kStride = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kK = kHeads * kHeadDim, kV = kK + kKvHeads * kHeadDim;  // places in a row

// One text of rows [q | k | v], no rotation.
struct Text {
  int64_t tokens;
  std::vector<float> rows;
  explicit Text(int64_t n, uint64_t seed = 3) : tokens(n), rows(static_cast<size_t>(n * kStride)) {
    Random random(seed);
    for (float& x : rows) x = random.normal();
  }
  float& at(int64_t token, int64_t column) { return rows[static_cast<size_t>(token * kStride + column)]; }
  float at(int64_t token, int64_t column) const { return rows[static_cast<size_t>(token * kStride + column)]; }
};

// The text through the producers, `chunk` rows at a time, then through attention as well.
struct Outcome {
  std::vector<float> out;  // [tokens, kHeads x kHeadDim]
  std::vector<std::byte> pages, wide;
};

Outcome run(const ProducerKernels& producers, const AttentionKernel& attention, const Text& text, PagedCache& cache,
            std::vector<std::byte>& wide, int64_t chunk, int threads = 2) {
  ThreadPool pool(threads);
  Scratch scratch;
  std::vector<float> rows = text.rows;
  std::vector<float> cos_sin(static_cast<size_t>(text.tokens * kHeadDim));
  for (int64_t p = 0; p < text.tokens; ++p) std::fill_n(cos_sin.begin() + p * kHeadDim, kHeadDim / 2, 1.0f);
  cache.layer().wide_base = wide.data();
  Outcome result;
  for (int64_t begin = 0; begin < text.tokens; begin += chunk) {
    const int64_t count = std::min(chunk, text.tokens - begin);
    const KvSequence sequence{0, count, begin, cache.table(0)};
    RopeKvCall rope{.qkv = rows.data() + begin * kStride, .stride = kStride, .rows = count};
    rope.num_heads = kHeads, rope.num_kv_heads = kKvHeads, rope.head_dim = kHeadDim;
    rope.cos_sin = cos_sin.data();
    rope.sequences = &sequence, rope.num_sequences = 1;
    rope.kv = cache.layer();
    producers.rope_kv(rope, pool);
    AttentionCall call{.q = rope.qkv, .q_stride = kStride, .num_heads = kHeads, .head_dim = kHeadDim};
    call.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
    call.sequences = &sequence, call.num_sequences = 1;
    call.kv = cache.layer();
    ActivationBuffer buffer;
    call.output = buffer.resize(plain_format(ElementType::kF32), count, kHeads * kHeadDim);
    attention.run(call, pool, scratch);
    for (int64_t r = 0; r < count; ++r) {
      const auto* row = reinterpret_cast<const float*>(call.output.row(r));
      result.out.insert(result.out.end(), row, row + kHeads * kHeadDim);
    }
  }
  result.pages = cache.bytes();
  result.wide = wide;
  return result;
}

// What attention over the text itself gives, in FP64.
std::vector<double> exact_attention(const Text& text) {
  std::vector<double> out;
  for (int64_t p = 0; p < text.tokens; ++p)
    for (int h = 0; h < kHeads; ++h) {
      std::vector<double> scores, values(kHeadDim);
      for (int64_t t = 0; t <= p; ++t) {
        double sum = 0;
        for (int d = 0; d < kHeadDim; ++d)
          sum += static_cast<double>(text.at(p, h * kHeadDim + d)) * text.at(t, kK + h / kGroup * kHeadDim + d);
        scores.push_back(sum / std::sqrt(static_cast<double>(kHeadDim)));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (int64_t t = 0; t <= p; ++t) {
        const double weight = std::exp(scores[static_cast<size_t>(t)] - most);
        total += weight;
        for (int d = 0; d < kHeadDim; ++d)
          values[static_cast<size_t>(d)] += weight * text.at(t, kV + h / kGroup * kHeadDim + d);
      }
      for (const double value : values) out.push_back(value / total);
    }
  return out;
}

double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, total = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    total += want[i] * want[i];
  }
  return std::sqrt(error / total);
}

std::vector<const AttentionKernel*> rows_here() {
  std::vector<const AttentionKernel*> rows;
  for (const AttentionKernel* row : attention_kernels())
    if (isa_available(row->isa)) rows.push_back(row);
  return rows;
}

struct Channels {
  std::vector<float> factors, zeros, inverses;
  const std::vector<float> ones = std::vector<float>(kKvHeads, 1.0f);
  Channels(const Text& text, ElementType element) {
    for (int c = 0; c < kKvHeads * kHeadDim; ++c) {
      float low = INFINITY, high = -INFINITY;
      for (int64_t t = 0; t < text.tokens; ++t) {
        low = std::min(low, text.at(t, kK + c));
        high = std::max(high, text.at(t, kK + c));
      }
      zeros.push_back(0.5f * (low + high));
      factors.push_back(0.5f * (high - low) / element_info(element).max);
      inverses.push_back(1.0f / factors.back());
    }
  }
  void attach(PagedKvLayer& layer) const {
    layer.q_factors = factors.data();
    layer.k_zeros = zeros.data();
    layer.k_inverses = inverses.data();
    layer.k_scales = ones.data();
  }
};

// Keys with a large constant in some channels, as models with a K bias have them (and tiny values beside it): a scale
// per token drowns the rest, a zero point per channel does not; the softmax does not see the constant.
TEST(KvVariants, ChannelScalesAndZeroPointsKeepAttentionWhereAScalePerTokenCannot) {
  Text text(120);
  for (int64_t t = 0; t < text.tokens; ++t)
    for (int c = 0; c < kKvHeads * kHeadDim; ++c) {
      if (c % 16 == 3) text.at(t, kK + c) = 900 + 4 * text.at(t, kK + c);
      if (c % 16 == 5) text.at(t, kK + c) *= 0.01f;
    }
  for (int64_t t = 0; t < text.tokens; ++t)
    for (int c = 0; c < kHeads * kHeadDim; ++c)
      if (c % 16 == 3) text.at(t, c) *= 0.02f;
  const std::vector<double> want = exact_attention(text);
  for (const ElementType element : {ElementType::kInt8, ElementType::kE4m3}) {
    const Channels channels(text, element);
    std::vector<float> reference;
    for (const AttentionKernel* row : rows_here()) {
      std::vector<std::byte> none(1);
      PagedCache plain(element, ElementType::kBf16, kHeadDim, kKvHeads, {text.tokens}),
          calibrated(element, ElementType::kBf16, kHeadDim, kKvHeads, {text.tokens});
      channels.attach(calibrated.layer());
      const ProducerKernels& producers = choose_producers(row->isa);
      const double per_token = relative_error(run(producers, *row, text, plain, none, 50).out, want);
      const Outcome run_channels = run(producers, *row, text, calibrated, none, 50);
      const double error = relative_error(run_channels.out, want);
      EXPECT_LT(error, element == ElementType::kInt8 ? 0.01 : 0.06) << row->name;
      // E4M3 keeps its precision over many octaves: there the constant hurts little.
      EXPECT_GT(per_token, (element == ElementType::kInt8 ? 5 : 1) * error)
          << row->name << " " << element_name(element);
      if (row->isa == Isa::kAvx512Bf16) continue;
      if (reference.empty()) reference = run_channels.out;
      EXPECT_TRUE(run_channels.out == reference) << row->name;
    }
  }
}

// Tokens that no eight-bit element holds, among tokens that E4M3 with scale 1 holds exactly.
TEST(KvVariants, WideTokensAreReadExactlyInPrefillAndDecode) {
  const std::vector<float> ones(kKvHeads, 1.0f);
  for (const int wide_tokens : {3, 32}) {
    Text text(300, 9);
    for (int64_t t = 0; t < text.tokens; ++t)
      for (int64_t c = kK; c < kStride; ++c) {
        const float power = std::exp2(std::round(2 * text.at(t, c)));
        const float exact = std::copysign(std::clamp(power, 0.03125f, 8.0f), text.at(t, c));
        text.at(t, c) = t < wide_tokens ? exact * 1.4375f * (c < kV ? 0.5f : 64.0f) + exact / 128 : exact;
      }
    for (int64_t t = 0; t < text.tokens; ++t)
      for (int64_t c = kK; c < kStride; ++c) {
        std::byte code[2];
        store_element(ElementType::kBf16, code, 0, text.at(t, c));
        text.at(t, c) = load_element(ElementType::kBf16, code, 0);
      }
    const std::vector<double> want = exact_attention(text);
    for (const AttentionKernel* row : rows_here()) {
      Outcome first;
      for (const int64_t chunk : {300, 64, 7, 1}) {
        if (row->isa == Isa::kReference && chunk != 64) continue;  // slow, and cut by nothing
        PagedCache cache(ElementType::kE4m3, ElementType::kE4m3, kHeadDim, kKvHeads, {text.tokens});
        PagedKvLayer& layer = cache.layer();
        layer.k_scales = layer.v_scales = ones.data();
        layer.k_wide = layer.v_wide = wide_tokens;
        std::vector<std::byte> wide(layer.wide_bytes() * kKvHeads * 16, std::byte{0xFF});
        const Outcome got = run(choose_producers(row->isa), *row, text, cache, wide, chunk);
        const double error = relative_error(got.out, want);
        EXPECT_LT(error, row->isa == Isa::kAvx512Bf16 ? 5e-3 : 3e-6) << row->name << ", chunks of " << chunk;
        if (first.out.empty()) first = got;
        EXPECT_TRUE(got.out == first.out && got.pages == first.pages && got.wide == first.wide)
            << row->name << ", chunks of " << chunk << ", wide " << wide_tokens;
      }
    }
  }
}

// The two sides apart: a wide side beside one that is not.
TEST(KvVariants, WideKeysAloneAndWideValuesAlone) {
  Text text(90, 4);
  for (const bool keys : {true, false}) {
    std::vector<float> reference;
    for (const AttentionKernel* row : rows_here()) {
      std::vector<float> first;
      for (const int64_t chunk : {90, 1}) {
        PagedCache cache(ElementType::kInt8, ElementType::kE5m2, kHeadDim, kKvHeads, {text.tokens});
        (keys ? cache.layer().k_wide : cache.layer().v_wide) = 3;
        std::vector<std::byte> wide(cache.layer().wide_bytes() * kKvHeads * 8);
        const Outcome got = run(choose_producers(row->isa), *row, text, cache, wide, chunk);
        if (first.empty()) first = got.out;
        EXPECT_TRUE(got.out == first) << row->name << ", chunks of " << chunk;
      }
      if (row->isa == Isa::kAvx512Bf16) continue;
      if (reference.empty()) reference = first;
      EXPECT_TRUE(first == reference) << row->name;
    }
  }
}

TEST(KvVariants, RescaledBlocksFollowTheBlockBeforeWhateverTheChunks) {
  constexpr int kBlock = 64, kWide = 2;
  Text text(5 * kBlock + 9, 6);
  for (int64_t t = 0; t < text.tokens; ++t)
    for (int64_t c = kK; c < kStride; ++c) text.at(t, c) *= static_cast<float>(1 + t / kBlock);
  for (int c = 0; c < kHeadDim; ++c) text.at(1, kK + c) = 1e6f;  // a wide token: not counted
  text.at(70, kK + 5) = NAN;                                     // of block 1: its own token only
  for (int64_t c = kK; c < kStride; ++c)
    for (int64_t t = 3 * kBlock; t < 4 * kBlock; ++t) text.at(t, c) = 0;  // a block of zeros
  const std::vector<float> stored = {0.01f, 0.02f};
  const TensorFormat format = row_format(ElementType::kE4m3);
  const auto largest = [&](int64_t block, int column) {
    float most = 0;
    for (int64_t t = block * kBlock; t < (block + 1) * kBlock; ++t) {
      if (t < kWide || (t == 70 && column == kK)) continue;
      for (int d = 0; d < kHeadDim; ++d) most = std::max(most, std::fabs(text.at(t, column + d)));
    }
    return most;
  };
  const AttentionKernel& attention =
      choose_attention({ElementType::kE4m3, ElementType::kE4m3, kHeadDim, kGroup}, best_isa());
  Outcome first;
  for (const ProducerKernels* producers : producer_kernels()) {
    if (!isa_available(producers->isa)) continue;
    for (const int64_t chunk : {text.tokens, int64_t{200}, int64_t{64}, int64_t{7}, int64_t{1}}) {
      PagedCache cache(ElementType::kE4m3, ElementType::kE4m3, kHeadDim, kKvHeads, {text.tokens}, 3, 1, true);
      PagedKvLayer& layer = cache.layer();
      layer.k_scales = layer.v_scales = stored.data();
      layer.k_rescale = layer.v_rescale = kBlock;
      layer.k_wide = layer.v_wide = kWide;
      std::vector<std::byte> wide(layer.wide_bytes() * kKvHeads * 16);
      const Outcome got = run(*producers, attention, text, cache, wide, chunk, 3);
      if (first.pages.empty()) first = got;
      EXPECT_TRUE(got.pages == first.pages) << producers->name << ", chunks of " << chunk;
      for (int64_t t = 0; t < text.tokens; t += 13)
        for (int head = 0; head < kKvHeads; ++head)
          for (const bool key : {true, false}) {
            const int64_t block = t / kBlock;
            const float before = block == 0 ? 0 : largest(block - 1, (key ? kK : kV) + head * kHeadDim);
            const float want = before == 0 ? stored[static_cast<size_t>(head)] : scale_from_amax(before / 0.9f, format);
            float scale = 0;
            std::memcpy(&scale,
                        layer.page(cache.table(0)[t / kPageTokens], head) +
                            (key ? layer.layout.k_scales_offset() : layer.layout.v_scales_offset()) +
                            static_cast<size_t>(t % kPageTokens) * 4,
                        4);
            EXPECT_EQ(scale, want) << "token " << t << ", head " << head;
          }
    }
  }
}

}  // namespace
}  // namespace octavo
