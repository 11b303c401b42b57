#include "evaluate/score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "evaluate/perplexity.h"
#include "support/test_models.h"

namespace octavo {
namespace {

// One span at a time, every logit.
SpanScore plain_score(Model& model, const ScoreSpan& span) {
  SpanScore score;
  PagePool kv = model.make_kv_cache(static_cast<int64_t>(span.tokens.size()));
  Sequence sequence(model, kv);
  const std::span<const TokenId> fed = std::span(span.tokens).first(span.tokens.size() - 1);
  const auto first = static_cast<int64_t>(span.tokens.size()) - span.scored - 1;
  EXPECT_TRUE(sequence
                  .feed_all_logits(fed,
                                   [&](int64_t at, const float* rows, int64_t count, int64_t stride) {
                                     for (int64_t i = 0; i < count; ++i) {
                                       if (at + i < first) continue;
                                       const auto vocab = static_cast<size_t>(model.config().vocab_size);
                                       const std::span<const float> row(rows + i * stride, vocab);
                                       const TokenId next = span.tokens[static_cast<size_t>(at + i + 1)];
                                       score.loglikelihood -= negative_log_likelihood(row, next);
                                       int64_t likelier = 0;
                                       for (const float x : row) likelier += x > row[static_cast<size_t>(next)] ? 1 : 0;
                                       score.worst_rank = std::max(score.worst_rank, likelier);
                                       score.greedy = score.greedy && argmax(row) == next;
                                     }
                                   })
                  .has_value());
  return score;
}

// Spans with long common prefixes, none, and lengths around pages and steps: all the same as one by one.
TEST(ScoreSpans, EqualOneAtATimeToTheBit) {
  const TinyModelFolder folder("llama_untied_hd64");
  for (const char* scheme : {"bf16", "fp8"}) {
    const auto model = load_test_model(folder.path(), scheme, 2);
    Random random(4);
    const auto tokens = [&](size_t count) {
      std::vector<TokenId> ids(count);
      for (TokenId& id : ids) id = static_cast<TokenId>(random.below(320));
      return ids;
    };
    std::vector<ScoreSpan> spans;
    for (const size_t context : {1u, 31u, 32u, 33u, 64u, 100u, 400u, 500u}) {
      const std::vector<TokenId> prefix = tokens(context);
      for (const size_t tail : {1u, 2u, 7u, 1u, 12u}) {
        ScoreSpan span{.tokens = prefix, .scored = static_cast<int64_t>(tail)};
        const std::vector<TokenId> more = tokens(tail);
        span.tokens.insert(span.tokens.end(), more.begin(), more.end());
        spans.push_back(std::move(span));
      }
    }
    spans.push_back({.tokens = tokens(513), .scored = 512});  // the whole context, more logits than a step holds
    spans.push_back(spans.back());
    spans.push_back({.tokens = spans.back().tokens, .scored = 1});
    const auto scores = score_spans(*model, spans);
    ASSERT_TRUE(scores.has_value()) << scores.error().message();
    for (size_t i = 0; i < spans.size(); ++i) {
      const SpanScore expected = plain_score(*model, spans[i]);
      EXPECT_EQ((*scores)[i].loglikelihood, expected.loglikelihood) << scheme << " span " << i;
      EXPECT_EQ((*scores)[i].greedy, expected.greedy);
      EXPECT_EQ((*scores)[i].worst_rank, expected.worst_rank);
    }
  }
}

TEST(ScoreSpans, ManyShortSpansNeedNoMorePagesThanThereAre) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "bf16");
  std::vector<ScoreSpan> spans;
  for (TokenId i = 0; i < 300; ++i) spans.push_back({.tokens = {i, i, static_cast<TokenId>(i % 7)}, .scored = 1});
  const auto scores = score_spans(*model, spans);
  ASSERT_TRUE(scores.has_value());
  for (const size_t i : {0u, 150u, 299u}) {
    EXPECT_EQ((*scores)[i].loglikelihood, plain_score(*model, spans[i]).loglikelihood);
  }
}

TEST(SplitSpan, FollowsTheRulesOfTheHarness) {
  const ScriptModel script({{"Answer", ":", " yes", " no"}});
  const auto model = script.load();
  const auto span = split_span(*model, "ab", " c");
  ASSERT_TRUE(span.has_value());
  EXPECT_EQ(span->tokens, (std::vector<TokenId>{'a', 'b', ' ', 'c'}));
  EXPECT_EQ(span->scored, 2);
  // White space at the end of the context is scored with the continuation.
  EXPECT_EQ(split_span(*model, "ab \n", "c")->scored, 3);
  EXPECT_EQ(split_span(*model, "ab\u00A0", "c")->scored, 3);  // two bytes, two tokens here
  // Without a context: after the BOS token, or the end token where there is none.
  const auto alone = split_span(*model, "", "c");
  EXPECT_EQ(alone->tokens, (std::vector<TokenId>{ScriptModel::kEnd, 'c'}));
  EXPECT_EQ(alone->scored, 1);
  // Too long: the beginning goes.
  const auto long_one = split_span(*model, std::string(400, 'x'), " c");
  EXPECT_EQ(long_one->tokens.size(), 257u);
  EXPECT_EQ(long_one->scored, 2);
  EXPECT_FALSE(split_span(*model, "ab", "").has_value());
  EXPECT_FALSE(split_span(*model, "ab", std::string(300, 'c')).has_value());
}

}  // namespace
}  // namespace octavo
