// Rotary embedding and the writing of K and V into pages: every row against the reference, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/paged_cache.h"
#include "kernels/producers.h"
#include "numerics/bits.h"

namespace octavo {
namespace {

using test::PagedCache;

constexpr ElementType kKvTypes[] = {ElementType::kF32, ElementType::kBf16, ElementType::kE4m3, ElementType::kE5m2,
                                    ElementType::kInt8};

struct Layout {
  ElementType k = ElementType::kE4m3, v = ElementType::kE4m3;
  int head_dim = 64, num_heads = 4, num_kv_heads = 2;
  bool norms = false, stored = false;
  std::vector<int64_t> lengths = {70, 33};
};

struct Outcome {
  std::vector<float> qkv;
  std::vector<std::byte> pages;
  float poisoned_scale = 0;  // of the value that is not a number
  uint64_t k_clipped = 0, v_clipped = 0;
};

// Writes all tokens of every sequence, `chunk` at a time, all sequences in one call.
Outcome write_all(const ProducerKernels& row, const Layout& s, int64_t chunk, int threads) {
  ThreadPool pool(threads);
  PagedCache cache(s.k, s.v, s.head_dim, s.num_kv_heads, s.lengths);
  const int64_t stride = static_cast<int64_t>(s.num_heads + 2 * s.num_kv_heads) * s.head_dim + 5;
  int64_t total = 0, longest = 0;
  for (const int64_t n : s.lengths) total += n, longest = std::max(longest, n);
  Random random(3);
  Outcome out;
  out.qkv.resize(static_cast<size_t>(total * stride));
  for (float& x : out.qkv) x = random.normal() * (random.below(50) == 0 ? 30.0f : 1.0f);
  std::fill(out.qkv.begin(), out.qkv.begin() + stride, 0.0f);    // a token of zeros
  out.qkv[static_cast<size_t>(2 * stride - 7)] = std::nanf("");  // and one that is poisoned
  std::vector<float> cos_sin(static_cast<size_t>(longest * s.head_dim)), norm(static_cast<size_t>(s.head_dim));
  for (int64_t p = 0; p < longest; ++p)
    for (int i = 0; i < s.head_dim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(1e4, -2.0 * i / s.head_dim);
      cos_sin[static_cast<size_t>(p * s.head_dim + i)] = static_cast<float>(std::cos(angle));
      cos_sin[static_cast<size_t>(p * s.head_dim + s.head_dim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  for (float& x : norm) x = random.uniform(0.5f, 2.0f);
  const std::vector<float> stored = {0.02f, 0.5f};
  if (s.stored) cache.layer().k_scales = cache.layer().v_scales = stored.data();
  KvClipping clipping;
  cache.layer().clipping = &clipping;

  for (int64_t begin = 0; begin < longest; begin += chunk) {
    std::vector<KvSequence> sequences;
    int64_t row0 = 0;
    for (size_t i = 0; i < s.lengths.size(); ++i) {
      const int64_t end = std::min(s.lengths[i], begin + chunk);
      if (begin < end) sequences.push_back({row0 + begin, end - begin, begin, cache.table(i)});
      row0 += s.lengths[i];
    }
    RopeKvCall call{.qkv = out.qkv.data(), .stride = stride, .rows = total};
    call.num_heads = s.num_heads, call.num_kv_heads = s.num_kv_heads, call.head_dim = s.head_dim;
    if (s.norms) call.q_norm = call.k_norm = norm.data();
    call.eps = 1e-6f;
    call.cos_sin = cos_sin.data();
    call.sequences = sequences.data(), call.num_sequences = static_cast<int64_t>(sequences.size());
    call.kv = cache.layer();
    row.rope_kv(call, pool);
  }
  out.pages = cache.bytes();
  out.k_clipped = clipping.k, out.v_clipped = clipping.v;
  const PagedKvLayer& kv = cache.layer();
  std::memcpy(&out.poisoned_scale,
              kv.page(cache.table(0)[0], s.num_kv_heads - 1) + kv.layout.v_scales_offset() + sizeof(float),
              sizeof(float));
  return out;
}

void expect_same(const Outcome& want, const Outcome& got, const std::string& what) {
  for (size_t i = 0; i < want.qkv.size(); ++i)
    ASSERT_TRUE(float_bits(want.qkv[i]) == float_bits(got.qkv[i]) || (is_nan(want.qkv[i]) && is_nan(got.qkv[i])))
        << what << " value " << i << ": " << want.qkv[i] << " and " << got.qkv[i];
  EXPECT_EQ(want.k_clipped, got.k_clipped) << what;
  EXPECT_EQ(want.v_clipped, got.v_clipped) << what;
  ASSERT_EQ(want.pages.size(), got.pages.size());
  for (size_t i = 0; i < want.pages.size(); ++i) ASSERT_EQ(want.pages[i], got.pages[i]) << what << " page byte " << i;
}

std::vector<const ProducerKernels*> rows_here() {
  std::vector<const ProducerKernels*> rows;
  for (const ProducerKernels* row : producer_kernels())
    if (row->isa != Isa::kReference && isa_available(row->isa)) rows.push_back(row);
  return rows;
}

TEST(RopeKv, EveryPairOfElementTypesGivesTheBytesOfTheReference) {
  for (const ElementType k : kKvTypes)
    for (const ElementType v : kKvTypes) {
      Layout layout{.k = k, .v = v};
      const Outcome want = write_all(choose_producers(Isa::kReference), layout, 100, 1);
      for (const ProducerKernels* row : rows_here())
        expect_same(want, write_all(*row, layout, 100, 2),
                    fmt::format("{} {} {}", row->name, element_name(k), element_name(v)));
    }
}

TEST(RopeKv, EveryHeadDimensionWithAndWithoutNormsAndStoredScales) {
  for (const int head_dim : {2, 4, 6, 16, 30, 32, 34, 48, 80, 96, 128, 130, 256})
    for (const bool norms : {false, true})
      for (const bool stored : {false, true}) {
        Layout layout{.v = ElementType::kInt8, .head_dim = head_dim, .norms = norms, .stored = stored};
        layout.lengths = {37, 3};
        const Outcome want = write_all(choose_producers(Isa::kReference), layout, 100, 1);
        EXPECT_EQ(want.v_clipped > 0, stored) << head_dim;
        EXPECT_TRUE(stored || want.k_clipped == 0) << head_dim;
        for (const ProducerKernels* row : rows_here())
          expect_same(want, write_all(*row, layout, 100, 1), fmt::format("{} head_dim {}", row->name, head_dim));
      }
}

// INT8 has no code for it, so that the scale must tell, computed or given.
TEST(RopeKv, ANaNPoisonsItsToken) {
  for (const bool stored : {false, true})
    for (const ElementType v : {ElementType::kInt8, ElementType::kE4m3}) {
      Layout layout{.v = v, .stored = stored};
      std::vector<const ProducerKernels*> rows = rows_here();
      rows.push_back(&choose_producers(Isa::kReference));
      for (const ProducerKernels* row : rows) {
        const float scale = write_all(*row, layout, 100, 1).poisoned_scale;
        EXPECT_EQ(is_nan(scale), !stored || v == ElementType::kInt8) << row->name << " " << element_name(v);
      }
    }
}

TEST(RopeKv, ChunksAndThreadsChangeNoByte) {
  Layout layout{.norms = true};
  layout.lengths = {300, 131};
  for (const ProducerKernels* row : rows_here()) {
    const Outcome want = write_all(*row, layout, 300, 1);
    for (const int64_t chunk : {1, 7, 64})
      for (const int threads : {1, 2, 3})
        expect_same(want, write_all(*row, layout, chunk, threads), fmt::format("{} chunks of {}", row->name, chunk));
  }
}

}  // namespace
}  // namespace octavo
