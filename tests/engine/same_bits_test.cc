// The bits of logits and KV pages do not depend on how a prompt is cut, on batch mates, or on the number of threads.
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "engine/sequence.h"
#include "support/golden.h"
#include "support/kv_calibration_file.h"
#include "support/test_folder.h"

namespace octavo {
namespace {

std::vector<TokenId> random_prompt(int64_t count, int64_t vocab) {
  Random random(7);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(random.below(static_cast<uint64_t>(vocab))));
  return tokens;
}

// `kv`: its values are made up.
std::unique_ptr<Model> load(const std::string& name, const std::string& scheme, Isa isa, int threads,
                            const std::string& kv = "") {
  ModelOptions options{.text = false};
  options.plan.scheme = scheme;
  const TestFolder folder;
  if (!kv.empty()) {
    const auto checkpoint = Checkpoint::open(test_data("tiny/" + name));
    write_kv_calibration(folder / "kv.json", made_up_kv_calibration(checkpoint->config()), checkpoint->config());
    options.plan.kv_calibration = folder / "kv.json";
    options.plan.kv_cache_dtype = kv;
  }
  options.threads = threads;
  options.isa = isa;
  auto model = Model::load(test_data("tiny/" + name), options);
  if (!model) {
    ADD_FAILURE() << model.error().message();
    return nullptr;
  }
  return std::move(*model);
}

struct Outcome {
  std::vector<float> logits;     // of every token
  std::vector<std::byte> pages;  // all KV bytes, in logical order
  bool operator==(const Outcome& other) const {
    return logits.size() == other.logits.size() && pages == other.pages &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

std::vector<std::byte> kv_bytes(const PagePool& kv, std::span<const int32_t> pages) {
  std::vector<std::byte> bytes;
  for (const PagedKvLayer& layer : kv.layers())
    for (int head = 0; head < layer.num_kv_heads; ++head)
      for (const int32_t page : pages) {
        const std::byte* data = layer.page(page, head);
        bytes.insert(bytes.end(), data, data + layer.layout.page_bytes());
      }
  for (const PagedKvLayer& layer : kv.layers())
    for (int head = 0; layer.has_wide() && head < layer.num_kv_heads; ++head) {
      const std::byte* data = layer.wide_tokens(pages[0], head);
      bytes.insert(bytes.end(), data, data + layer.wide_bytes());
    }
  return bytes;
}

Outcome run_in_chunks(Model& model, std::span<const TokenId> prompt, int64_t chunk) {
  Outcome outcome;
  PagePool kv = model.make_kv_cache(static_cast<int64_t>(prompt.size()));
  Sequence sequence(model, kv);
  const auto vocab = model.config().vocab_size;
  const auto fed = sequence.feed_all_logits(
      prompt,
      [&](int64_t, const float* rows, int64_t count, int64_t stride) {
        for (int64_t i = 0; i < count; ++i)
          outcome.logits.insert(outcome.logits.end(), rows + i * stride, rows + i * stride + vocab);
      },
      chunk);
  EXPECT_TRUE(fed.has_value());
  outcome.pages = kv_bytes(kv, sequence.pages());
  return outcome;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16})
    if (isa_available(isa)) isas.push_back(isa);
  return isas;
}

void expect_same_bits(const std::string& name, const std::string& scheme, const std::string& kv = "") {
  Outcome fma_family;
  for (const Isa isa : available_isas()) {
    Outcome first;
    for (const int threads : {2, 1, 3}) {
      const std::unique_ptr<Model> model = load(name, scheme, isa, threads, kv);
      ASSERT_NE(model, nullptr);
      const std::vector<TokenId> prompt = random_prompt(300, model->config().vocab_size);
      for (const int64_t chunk : {300, 64, 7, 1}) {
        if (threads != 2 && (chunk != 64 || isa == Isa::kReference)) continue;  // each is varied on its own
        if (chunk == 1 && isa == Isa::kReference) continue;                     // slow, and cut by nothing else
        const Outcome outcome = run_in_chunks(*model, prompt, chunk);
        if (first.logits.empty()) first = outcome;
        EXPECT_TRUE(outcome == first) << isa_name(isa) << ", " << threads << " threads, chunks of " << chunk;
      }
    }
    // reference, avx2 and avx512 compute the same chain of operations: one set of bits for all three.
    if (isa == Isa::kAvx512Bf16) continue;
    if (fma_family.logits.empty()) fma_family = first;
    EXPECT_TRUE(first == fma_family) << isa_name(isa) << " differs from the reference";
  }
}

class SameBits : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(SameBits, UnderChunkingAndThreadsOnEveryIsa) {
  expect_same_bits(std::get<0>(GetParam()), std::get<1>(GetParam()));
}

// Every option of the KV cache once, in a few caches.
TEST(SameBitsKv, OfEveryVariant) {
  for (const char* kv : {"int8:channel:wide5:temperature", "fp8_e4m3:block64:wide1", "fp8_e5m2:static:skip0"})
    expect_same_bits("llama_untied_hd64", "bf16", kv);
  expect_same_bits("mistral_sliding", "bf16", "fp8_e4m3:dynamic:wide32");
}

std::string plan_name(const testing::TestParamInfo<SameBits::ParamType>& instance) {
  std::string text = std::string(std::get<0>(instance.param)) + "_" + std::get<1>(instance.param);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Plans, SameBits,
                         testing::Combine(testing::Values("llama_untied_hd64"),
                                          testing::Values("float32", "bf16", "fp8", "fp8-weight", "fp8-block",
                                                          "fp8-tensor", "int8", "int4", "int4-g32", "int4-zp",
                                                          "int4-g32-zp", "mxfp8", "mxfp4", "nvfp4")),
                         plan_name);
INSTANTIATE_TEST_SUITE_P(OtherModels, SameBits,
                         testing::Combine(testing::Values("mistral_sliding", "mixtral", "qwen3_moe", "qwen3_qk_norm"),
                                          testing::Values("float32", "bf16", "fp8", "fp8-weight", "fp8-block",
                                                          "fp8-tensor", "int8", "nvfp4")),
                         plan_name);

// Several sequences in one pass give what each gives alone.
TEST(SameBits, WithBatchMates) {
  const std::unique_ptr<Model> model = load("llama_untied_hd64", "fp8", best_isa(), 2);
  ASSERT_NE(model, nullptr);
  const int64_t vocab = model->config().vocab_size;
  const std::vector<TokenId> tokens = random_prompt(200, vocab);
  const int64_t lengths[] = {1, 33, 64, 102};
  PagePool kv = model->make_kv_cache(4 * 128);
  std::vector<std::vector<int32_t>> tables(4);
  std::vector<KvSequence> sequences;
  std::vector<int64_t> logit_rows;
  int64_t row = 0;
  for (size_t s = 0; s < 4; ++s) {
    ASSERT_TRUE(kv.allocate((lengths[s] + kPageTokens - 1) / kPageTokens, tables[s]));
    sequences.push_back({.row_begin = row, .num_rows = lengths[s], .position = 0, .page_table = tables[s].data()});
    row += lengths[s];
    logit_rows.push_back(row - 1);
  }
  ASSERT_EQ(row, 200);
  std::vector<float> together(static_cast<size_t>(4 * vocab));
  model->decoder().forward({tokens, sequences, logit_rows}, kv.layers(), together.data(), vocab, model->pool());
  for (size_t s = 0; s < 4; ++s) {
    PagePool own = model->make_kv_cache(128);
    Sequence alone(*model, own);
    const auto part =
        std::span(tokens).subspan(static_cast<size_t>(sequences[s].row_begin), static_cast<size_t>(lengths[s]));
    ASSERT_TRUE(alone.feed(part).has_value());
    EXPECT_EQ(0, std::memcmp(alone.logits().data(), together.data() + static_cast<int64_t>(s) * vocab,
                             static_cast<size_t>(vocab) * sizeof(float)))
        << "sequence " << s;
  }
}

// What stood in a page before does not matter.
TEST(SameBits, TruncatedAndFedAgain) {
  const std::unique_ptr<Model> model = load("llama_tied", "fp8", best_isa(), 2);
  ASSERT_NE(model, nullptr);
  const std::vector<TokenId> prompt = random_prompt(100, model->config().vocab_size);
  PagePool kv = model->make_kv_cache(256);
  Sequence sequence(*model, kv);
  ASSERT_TRUE(sequence.feed(prompt).has_value());
  const std::vector<float> expected(sequence.logits().begin(), sequence.logits().end());
  const std::vector<TokenId> other(50, 5);
  sequence.truncate(40);
  ASSERT_TRUE(sequence.feed(other).has_value());
  sequence.truncate(40);
  ASSERT_TRUE(sequence.feed(std::span(prompt).subspan(40)).has_value());
  EXPECT_EQ(0, std::memcmp(expected.data(), sequence.logits().data(), expected.size() * sizeof(float)));
  sequence.truncate(0);
  EXPECT_EQ(kv.num_free(), kv.num_pages());
}

}  // namespace
}  // namespace octavo
