#include "evaluate/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "evaluate/error_budget.h"
#include "support/test_models.h"

namespace octavo {
namespace {

struct PlainDivergence {
  double kl = 0, nll = 0;
};

// By the definition, in double.
PlainDivergence plain(const std::vector<float>& base, const std::vector<float>& candidate, size_t next) {
  const auto log_sum = [](const std::vector<float>& logits) {
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    return std::log(sum);
  };
  const double zb = log_sum(base), zc = log_sum(candidate);
  PlainDivergence out{.nll = zc - candidate[next]};
  for (size_t i = 0; i < base.size(); ++i) out.kl += std::exp(base[i] - zb) * ((base[i] - zb) - (candidate[i] - zc));
  return out;
}

TEST(CompareRows, AgreesWithTheDefinition) {
  Random random(5);
  for (const size_t size : {1u, 17u, 255u, 256u, 257u, 49152u})
    for (const float noise : {1e-3f, 0.1f, 3.0f}) {
      std::vector<float> base(size), candidate(size);
      for (size_t i = 0; i < size; ++i) {
        base[i] = 4 * random.normal();
        candidate[i] = base[i] + noise * random.normal() + 7;  // a common shift changes nothing
      }
      const RowDivergence row = compare_rows(base, candidate, static_cast<TokenId>(size / 2));
      const PlainDivergence expected = plain(base, candidate, size / 2);
      EXPECT_NEAR(row.kl, expected.kl, 2e-6 + 1e-5 * expected.kl) << size << " " << noise;
      EXPECT_NEAR(row.candidate_nll, expected.nll, 2e-5);
      EXPECT_EQ(row.base_nll, negative_log_likelihood(base, static_cast<TokenId>(size / 2)));
    }
}

TEST(CompareRows, EqualRowsHaveNoDivergenceAndBrokenOnesAreNaN) {
  std::vector<float> row = {3e4f, -3e4f, 0.5f, 0.25f}, other = row;
  EXPECT_EQ(compare_rows(row, row, 1).kl, 0.0);
  EXPECT_TRUE(compare_rows(row, row, 1).same_top);
  other[1] = NAN;
  EXPECT_TRUE(std::isnan(compare_rows(row, other, 0).kl));
  EXPECT_TRUE(std::isnan(compare_rows(other, row, 0).kl));
}

std::string long_text() {
  std::string text;
  Random random(11);
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + random.below(26));
  return text;
}

TEST(Compare, AgreesWithPerplexityOfEachAlone) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto base = load_test_model(folder.path(), "bf16"), candidate = load_test_model(folder.path(), "fp8");
  const std::string text = long_text();
  const PerplexityOptions options{.context = 150, .windows = 4};
  const auto both = compare(*base, *candidate, text, options);
  ASSERT_TRUE(both.has_value()) << both.error().message();
  const auto alone = perplexity(*base, text, options), other = perplexity(*candidate, text, options);
  EXPECT_NEAR(both->base_perplexity, alone->perplexity, 1e-9 * alone->perplexity);
  EXPECT_NEAR(both->candidate_perplexity, other->perplexity, 1e-9 * other->perplexity);
  EXPECT_EQ(both->tokens_scored, alone->tokens_scored);
  EXPECT_GT(both->kl_mean, 0);
  EXPECT_LE(both->kl_median, both->kl_p99);
  EXPECT_LE(both->kl_p99, both->kl_p999);
  EXPECT_LE(both->kl_p999, both->kl_max);
  EXPECT_LT(both->same_top, 1.0);
  EXPECT_GT(both->nll_difference_standard_error, 0);
  // The same plan gives the same bits, also with other threads.
  const auto twin = load_test_model(folder.path(), "bf16", 3);
  const auto same = compare(*base, *twin, text, options);
  EXPECT_EQ(same->kl_max, 0);
  EXPECT_EQ(same->same_top, 1.0);
  EXPECT_EQ(same->nll_difference, 0);
}

TEST(Compare, RefusesModelsOfOtherVocabularies) {
  const TinyModelFolder folder("llama_untied_hd64");
  const ScriptModel other({std::vector<std::string>{"a", "b"}});
  const auto base = load_test_model(folder.path(), "bf16"), candidate = other.load();
  const auto result = compare(*base, *candidate, long_text(), {.context = 100});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().what.find("vocabularies"), std::string::npos);
}

TEST(ErrorBudget, EachPartIsLoweredAlone) {
  const TinyModelFolder folder("llama_untied_hd64");
  ModelSpec base{.path = folder.path()}, candidate{.path = folder.path()};
  base.options.plan.scheme = "bf16";
  candidate.options.plan.scheme = "fp8";
  candidate.options.plan.v_dtype = "fp8_e5m2";
  base.options.threads = candidate.options.threads = 1;
  const std::string text = long_text();
  const auto rows = error_budget(base, candidate, text, {.context = 150, .windows = 2});
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  std::vector<std::string> parts;
  for (const BudgetRow& row : *rows) parts.push_back(row.part);
  EXPECT_EQ(parts, (std::vector<std::string>{"weights", "activations", "weights and activations", "K", "V", "kernels",
                                             "all"}));
  EXPECT_EQ((*rows)[4].formats, "V fp8_e5m2 per row");
  // "K" alone is what the KV flag gives.
  ModelOptions k_alone = base.options;
  k_alone.plan.k_dtype = "fp8_e4m3";
  const auto wide = load_test_model(folder.path(), "bf16");
  const auto k_model = Model::load(folder.path(), k_alone);
  const auto k_result = compare(*wide, **k_model, text, {.context = 150, .windows = 2});
  ASSERT_TRUE((*rows)[3].result.has_value());
  EXPECT_EQ((*rows)[3].result->kl_mean, k_result->kl_mean);
  // "weights" is fp8-weight; "all" is the candidate.
  const auto weight_only = load_test_model(folder.path(), "fp8-weight");
  EXPECT_EQ((*rows)[0].result->kl_mean, compare(*wide, *weight_only, text, {.context = 150, .windows = 2})->kl_mean);
  for (const BudgetRow& row : *rows)
    if (row.part != "kernels" && row.part != "all") {
      ASSERT_TRUE(row.result.has_value()) << row.part << row.why_not;
      EXPECT_GT(row.result->kl_mean, 0) << row.part;
    }
}

TEST(ErrorBudget, SaysWhatHasNoFastKernel) {
  const TinyModelFolder folder("llama_untied_hd64");
  ModelSpec base{.path = folder.path()}, candidate{.path = folder.path()};
  base.options.plan.scheme = "bf16";
  candidate.options.plan.scheme = "int8";
  base.options.threads = candidate.options.threads = 1;
  const auto rows = error_budget(base, candidate, long_text(), {.context = 150, .windows = 1});
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  EXPECT_TRUE((*rows)[0].result.has_value()) << "INT8 weights, BF16 activations: " << (*rows)[0].why_not;
  EXPECT_FALSE((*rows)[1].result.has_value()) << "BF16 weights, INT8 activations";
  EXPECT_NE((*rows)[1].why_not.find("int8"), std::string::npos) << (*rows)[1].why_not;
  EXPECT_TRUE((*rows)[2].result.has_value());
}

// One weight of NaN: what has that weight says so, the rest of the table stands.
TEST(ErrorBudget, ARowThatIsNotFiniteDoesNotEndTheTable) {
  const TinyModelFolder folder("llama_untied_hd64"), broken_weights("llama_untied_hd64");
  const std::filesystem::path weights = broken_weights.path() / "model.safetensors";
  std::string bytes = read_text_file(weights).value();
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const Json index = Json::parse(bytes.substr(8, header));
  const size_t at = 8 + header + index["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0].get<size_t>();
  bytes.replace(at, 2, "\xc0\x7f");
  std::filesystem::remove(weights);  // it is a link
  std::ofstream(weights, std::ios::binary) << bytes;
  ModelSpec base{.path = folder.path()}, candidate{.path = broken_weights.path()};
  base.options.plan.scheme = candidate.options.plan.scheme = "bf16";
  candidate.options.plan.k_dtype = "fp8_e4m3";
  const auto rows = error_budget(base, candidate, long_text(), {.context = 150, .windows = 2});
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  for (const BudgetRow& row : *rows) {
    EXPECT_EQ(row.result.has_value(), row.part == "K") << row.part;
    if (row.part == "weights" || row.part == "all") {
      EXPECT_NE(row.why_not.find("not finite"), std::string::npos) << row.why_not;
    }
  }
}

}  // namespace
}  // namespace octavo
