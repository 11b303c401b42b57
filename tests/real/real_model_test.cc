// The real model, SmolLM2-135M-Instruct, against transformers in FP32 and against the fake-quantization ladder.
// Its folder is made by ./check or ./start (tools/real_model.sh).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "base/json.h"
#include "engine/generate.h"
#include "engine/sequence.h"
#include "evaluate/perplexity.h"
#include "support/golden.h"

namespace octavo {
namespace {

const char* kFolder = OCTAVO_REAL_MODEL;

std::unique_ptr<Model> load(const std::string& scheme, const std::string& kv = "", std::optional<Isa> isa = {},
                            const std::string& folder = kFolder) {
  ModelOptions options;
  options.plan.scheme = scheme;
  options.plan.kv_cache_dtype = kv;
  options.isa = isa;
  auto model = Model::load(folder, options);
  if (!model) {
    ADD_FAILURE() << model.error().message();
    return nullptr;
  }
  return std::move(*model);
}

Isa best_fma() {
  return isa_available(Isa::kAvx512) ? Isa::kAvx512 : Isa::kAvx2;
}

TEST(RealModel, LogitsAgreeWithTransformers) {
  const Golden golden(test_data("smollm2/golden.safetensors"));
  const std::unique_ptr<Model> model = load("float32", "", best_fma());
  ASSERT_NE(model, nullptr);
  const auto vocab = static_cast<size_t>(model->config().vocab_size);
  for (int prompt = 0; golden.has(fmt::format("ids.{}", prompt)); ++prompt) {
    const std::vector<int32_t> ids = golden.ints(fmt::format("ids.{}", prompt));
    const std::vector<int32_t> top_ids = golden.ints(fmt::format("top_ids.{}", prompt));
    const std::vector<float> top_logits = golden.floats(fmt::format("top_logits.{}", prompt));
    const std::vector<float> logsumexp = golden.floats(fmt::format("logsumexp.{}", prompt));
    PagePool kv = model->make_kv_cache(static_cast<int64_t>(ids.size()));
    Sequence sequence(*model, kv);
    ASSERT_TRUE(
        sequence
            .feed_all_logits(ids,
                             [&](int64_t first, const float* rows, int64_t count, int64_t stride) {
                               for (int64_t i = 0; i < count; ++i) {
                                 const std::span<const float> row(rows + i * stride, vocab);
                                 const auto at = static_cast<size_t>(first + i);
                                 std::vector<float> ours;
                                 for (size_t k = 0; k < 32; ++k)
                                   ours.push_back(row[static_cast<size_t>(top_ids[at * 32 + k])]);
                                 EXPECT_LT(relative_error(ours, std::span(top_logits).subspan(at * 32, 32)), 1e-3)
                                     << "prompt " << prompt << ", position " << at;
                                 // negative_log_likelihood(row, t) + row[t] is the log of the sum of exponentials.
                                 EXPECT_NEAR(negative_log_likelihood(row, 0) + row[0], logsumexp[at], 2e-3);
                               }
                             })
            .has_value());
    EXPECT_LT(relative_error(sequence.logits(), golden.floats(fmt::format("last_logits.{}", prompt))), 1e-3);
  }
}

TEST(RealModel, GreedyTokensAgreeWithTransformers) {
  const Golden golden(test_data("smollm2/golden.safetensors"));
  const std::unique_ptr<Model> model = load("float32", "", best_fma());
  ASSERT_NE(model, nullptr);
  for (int prompt = 0; golden.has(fmt::format("ids.{}", prompt)); ++prompt) {
    const std::vector<int32_t> ids = golden.ints(fmt::format("ids.{}", prompt)),
                               greedy = golden.ints(fmt::format("greedy_ids.{}", prompt));
    const std::vector<float> margins = golden.floats(fmt::format("greedy_margin.{}", prompt));
    PagePool kv = model->make_kv_cache(static_cast<int64_t>(ids.size() + greedy.size()));
    Sequence sequence(*model, kv);
    ASSERT_TRUE(sequence.feed(ids).has_value());
    for (size_t i = 0; i < greedy.size(); ++i) {
      const TokenId best = argmax(sequence.logits());
      const float largest = sequence.logits()[static_cast<size_t>(best)];
      if (margins[i] > 1e-3f * std::fabs(largest)) {
        EXPECT_EQ(best, greedy[i]) << "prompt " << prompt << ", step " << i;
      }
      ASSERT_TRUE(sequence.feed({&greedy[i], 1}).has_value());
    }
  }
}

// By the copy of the head and from all logits; few panels of the head are computed for it.
TEST(RealModel, TheGreedyHeadFindsTheHighestLogit) {
  const std::unique_ptr<Model> model = load("fp8");
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(model->decoder().load_greedy_head(model->checkpoint(), model->isa(), model->pool()));
  ASSERT_NE(model->decoder().greedy_head(), nullptr);
  const std::vector<TokenId> prompt = model->tokenizer().encode("The capital of France is", true);
  PagePool kv = model->make_kv_cache(512);
  Sequence whole(*model, kv), greedy(*model, kv);
  std::vector<TokenId> next = prompt;
  int64_t panels = 0;
  for (int step = 0; step < 100; ++step) {
    ASSERT_TRUE(whole.feed(next));
    const auto found = greedy.feed_highest(next, model->config().vocab_size);
    ASSERT_TRUE(found);
    ASSERT_TRUE(found->has_value());
    ASSERT_EQ(**found, argmax(whole.logits())) << step;
    panels += model->decoder().greedy_head()->panels_computed();
    next = {**found};
  }
  EXPECT_LT(panels, 100 * 200) << "of 1536 a step";
}

TEST(RealModel, TokenizationOfThePromptsAgrees) {
  const Golden golden(test_data("smollm2/golden.safetensors"));
  const auto tokenizer = Tokenizer::open(kFolder);
  ASSERT_TRUE(tokenizer.has_value());
  const auto prompts = parse_json(read_text_file(test_data("smollm2/prompts.json")).value(), "prompts");
  for (size_t i = 0; i < prompts->size(); ++i)
    EXPECT_EQ(tokenizer->encode((*prompts)[i].get<std::string>(), false), golden.ints(fmt::format("ids.{}", i)));
}

// Every position's logits for the longest prompt.
std::vector<float> all_logits(Model& model, std::span<const TokenId> ids, int64_t chunk = 128) {
  std::vector<float> out;
  PagePool kv = model.make_kv_cache(static_cast<int64_t>(ids.size()));
  Sequence sequence(model, kv);
  const auto vocab = model.config().vocab_size;
  EXPECT_TRUE(sequence
                  .feed_all_logits(
                      ids,
                      [&](int64_t, const float* rows, int64_t count, int64_t stride) {
                        for (int64_t i = 0; i < count; ++i)
                          out.insert(out.end(), rows + i * stride, rows + i * stride + vocab);
                      },
                      chunk)
                  .has_value());
  return out;
}

double mean_kl(const std::vector<float>& p, const std::vector<float>& q, size_t vocab) {
  double total = 0;
  for (size_t begin = 0; begin < p.size(); begin += vocab) {
    const std::span<const float> a(p.data() + begin, vocab), b(q.data() + begin, vocab);
    const double za = negative_log_likelihood(a, 0) + a[0], zb = negative_log_likelihood(b, 0) + b[0];
    for (size_t i = 0; i < vocab; ++i) total += std::exp(a[i] - za) * ((a[i] - za) - (b[i] - zb));
  }
  return total / (static_cast<double>(p.size()) / static_cast<double>(vocab));
}

std::vector<TokenId> wiki_tokens(const Model& model, size_t count) {
  std::vector<TokenId> ids =
      model.tokenizer().encode(read_text_file(test_data("text/wikitext2-valid-head.txt")).value(), false);
  ids.resize(count);
  return ids;
}

// The rows of the FMA family and the exact INT8 rows are one set of bits. The BF16 dot product is near; where
// activations are rounded to eight bits, a small difference becomes a whole step whenever it crosses a rounding
// boundary, so that two rows of one plan differ by as much as a part of the plan's own rounding noise.
TEST(RealModel, RowsOfAPlanAgree) {
  const std::unique_ptr<Model> wide = load("bf16", "", Isa::kAvx2);
  ASSERT_NE(wide, nullptr);
  const std::vector<TokenId> ids = wiki_tokens(*wide, 96);
  const std::vector<float> base = all_logits(*wide, ids);
  const auto vocab = static_cast<size_t>(wide->config().vocab_size);
  for (const auto& [scheme, bound] : {std::pair{"bf16", 5e-4}, std::pair{"fp8", 0.1}, std::pair{"int8", 0.1}}) {
    const std::unique_ptr<Model> avx2 = load(scheme, "", Isa::kAvx2);
    const std::vector<float> expected = all_logits(*avx2, ids);
    std::printf("mean KL, bf16 against %s: %.2e\n", scheme, mean_kl(base, expected, vocab));
    for (const Isa isa : {Isa::kAvx512, Isa::kAvx512Bf16}) {
      if (!isa_available(isa)) continue;
      const std::vector<float> logits = all_logits(*load(scheme, "", isa), ids);
      if (isa == Isa::kAvx512) {
        EXPECT_TRUE(logits == expected) << scheme;
      }
      const double kl = mean_kl(expected, logits, vocab);
      std::printf("mean KL, %s, avx2 against %s: %.2e\n", scheme, std::string(isa_name(isa)).c_str(), kl);
      EXPECT_LT(kl, bound) << scheme << " " << isa_name(isa);
    }
  }
}

TEST(RealModel, ReferenceHasTheSameBits) {
  for (const char* scheme : {"bf16", "fp8", "int8"}) {
    const std::unique_ptr<Model> reference = load(scheme, "", Isa::kReference), fast = load(scheme, "", best_fma());
    const std::vector<TokenId> ids = wiki_tokens(*reference, 12);
    EXPECT_TRUE(all_logits(*reference, ids) == all_logits(*fast, ids)) << scheme;
  }
}

TEST(RealModel, SameBitsForEveryChunking) {
  for (const char* scheme : {"bf16", "fp8", "int8"}) {
    const std::unique_ptr<Model> model = load(scheme);
    const std::vector<TokenId> ids = wiki_tokens(*model, 300);
    const std::vector<float> whole = all_logits(*model, ids, 300);
    for (const int64_t chunk : {1, 7, 64})
      EXPECT_TRUE(all_logits(*model, ids, chunk) == whole) << scheme << ", chunks of " << chunk;
  }
}

struct LadderCase {
  const char *name, *scheme, *kv, *oracle;
  double bound;
};
void PrintTo(const LadderCase& rung, std::ostream* out) {
  *out << rung.name;
}

class Ladder : public testing::TestWithParam<LadderCase> {};

TEST_P(Ladder, PerplexityIsTheOracles) {
  const LadderCase& rung = GetParam();
  const auto oracle = parse_json(read_text_file(test_data("smollm2/ladder.json")).value(), "ladder");
  const double expected = (*oracle)["perplexity"][rung.oracle].get<double>();
  const std::unique_ptr<Model> model = load(rung.scheme, rung.kv);
  ASSERT_NE(model, nullptr);
  const auto result = perplexity(*model, read_text_file(test_data("text/wikitext2-valid-head.txt")).value(),
                                 {.context = 1024, .windows = 12});
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->tokens_scored, (*oracle)["scored"].get<int64_t>());
  std::printf("%s: perplexity %.4f, oracle %.4f (%+.3f %%)\n", rung.name, result->perplexity, expected,
              100 * (result->perplexity / expected - 1));
  EXPECT_NEAR(result->perplexity / expected, 1.0, rung.bound);
}

const auto kRungName = [](const auto& rung) { return std::string(rung.param.name); };

INSTANTIATE_TEST_SUITE_P(
    Rungs, Ladder,
    testing::Values(LadderCase{"bf16", "bf16", "bf16", "bf16", 0.003},
                    LadderCase{"fp8_all", "fp8", "fp8_e4m3", "fp8: weights, activations, KV", 0.01},
                    LadderCase{"fp8_block_ue8m0", "fp8-block-ue8m0", "bf16", "fp8-block ue8m0: weights, activations",
                               0.01},
                    LadderCase{"int8", "int8", "bf16", "int8: weights, activations", 0.01},
                    LadderCase{"nvfp4", "nvfp4", "bf16", "nvfp4: weights", 0.03},
                    LadderCase{"fp8_weights", "fp8-weight", "bf16", "fp8: weights", 0.01},
                    LadderCase{"fp8_weights_activations", "fp8", "bf16", "fp8: weights, activations", 0.01},
                    LadderCase{"fp8_kv_alone", "bf16", "fp8_e4m3", "fp8: KV only", 0.01},
                    LadderCase{"fp8_block", "fp8-block", "bf16", "fp8-block: weights, activations", 0.01},
                    LadderCase{"fp8_tensor", "fp8-tensor", "bf16", "fp8-tensor: weights, activations per token", 0.01},
                    LadderCase{"kv_e5m2", "bf16", "fp8_e5m2", "KV e5m2", 0.01},
                    LadderCase{"kv_int8", "bf16", "int8", "KV int8", 0.01},
                    LadderCase{"mxfp8", "mxfp8", "bf16", "mxfp8: weights, activations", 0.01},
                    LadderCase{"int4", "int4", "bf16", "int4 g128: weights", 0.03},
                    LadderCase{"int4_g32", "int4-g32", "bf16", "int4 g32: weights", 0.03},
                    LadderCase{"mxfp4", "mxfp4", "bf16", "mxfp4: weights", 0.03}),
    kRungName);

}  // namespace
}  // namespace octavo
