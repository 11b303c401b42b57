// Text that a request gets from the ServingEngine: stop strings, characters split over tokens, logprobs.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/serving.h"
#include "support/serving_fixture.h"

namespace octavo {
namespace {

TEST_F(Serving, FollowsTheScriptToItsEnd) {
  const Collected answer = client_.ask(letters({}));
  EXPECT_EQ(answer.text, "DEFGHIJKLMNOP");
  EXPECT_EQ(answer.tokens, script_.ids({"DEF", "G", "HI", "J", "K", "LMN", "OP"}));
  EXPECT_EQ(answer.finish_reason, "stop");
  EXPECT_EQ(answer.prompt_tokens, 1);
  EXPECT_EQ(answer.completion_tokens, 7);
  EXPECT_EQ(answer.finishes, 1);
}

TEST_F(Serving, AStopStringOverManyTokensLeavesNothing) {
  const Collected answer = client_.ask(letters({"DEFGHIJ"}));
  EXPECT_EQ(answer.text, "");
  EXPECT_EQ(answer.finish_reason, "stop");
  EXPECT_EQ(answer.stop_match, "DEFGHIJ");
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(answer.completion_tokens, 0);
}

TEST_F(Serving, AStopStringEndsInsideATokenAndBegins) {
  const Collected answer = client_.ask(letters({"FGH"}));
  EXPECT_EQ(answer.text, "DE");
  EXPECT_EQ(answer.tokens, script_.ids({"DEF"}));
  EXPECT_EQ(answer.finish_reason, "stop");
}

TEST_F(Serving, HeldTextIsFlushed) {
  EXPECT_EQ(client_.ask(letters({"GHX"})).text, "DEFGHIJKLMNOP");
  const Collected cut = client_.ask(letters({"GHIJX"}, 3));  // ends inside a possible match
  EXPECT_EQ(cut.text, "DEFGHI");
  EXPECT_EQ(cut.finish_reason, "length");
  EXPECT_EQ(cut.completion_tokens, 3);
  const Collected ended = client_.ask(letters({"OPQ"}));
  EXPECT_EQ(ended.text, "DEFGHIJKLMNOP");
  EXPECT_EQ(ended.finish_reason, "stop");
  EXPECT_FALSE(ended.stop_match.has_value());
}

TEST_F(Serving, TheEarliestStartWins) {
  EXPECT_EQ(client_.ask(letters({"J", "FG"})).text, "DE");
  EXPECT_EQ(client_.ask(letters({"EF", "DEFG"})).text, "");
  const Collected inner = client_.ask(letters({"G", "EFGHI"}));  // G is complete first, EFGHI starts first
  EXPECT_EQ(inner.text, "D");
  EXPECT_EQ(inner.stop_match, "EFGHI");
  const Collected open = client_.ask(letters({"G", "EFGHIX"}));  // the earlier start comes to nothing
  EXPECT_EQ(open.text, "DEF");
  EXPECT_EQ(open.stop_match, "G");
}

TEST_F(Serving, AStopStringInThePromptDoesNothing) {
  EXPECT_EQ(client_.ask(letters({"ABC", "CD"})).text, "DEFGHIJKLMNOP");
}

TEST_F(Serving, AMultiByteStopStringSplitOverTokens) {
  GenerationRequest r = request({"9"}, 6);
  r.stop = {"\xCE\xBA"};
  Collected answer = client_.ask(r);
  EXPECT_EQ(answer.text, "x");
  EXPECT_EQ(answer.tokens, script_.ids({"x"}));
  r = request({"8"}, 6);
  r.stop = {"\xC3\xA9"};
  answer = client_.ask(r);
  EXPECT_EQ(answer.text, "caf");
}

TEST_F(Serving, EmptyStopStringsAndTooManyAreRefused) {
  for (GenerationRequest r : {letters({""}), letters(std::vector<std::string>(65, "x"))}) {
    const auto refused = engine_.submit(r, {});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().where, "stop");
  }
}

TEST_F(Serving, LogprobsGoWithTheTextWhenAStopStringIsHeld) {
  GenerationRequest r = letters({"JKX", "PQ"});
  r.num_logprobs = 2;
  std::string text;
  std::vector<TokenId> tokens;
  const RequestId id = client_.start(r, [&](const TokenEvent& event) {
    ASSERT_EQ(event.tokens.size(), event.logprobs.size());
    for (size_t i = 0; i < event.tokens.size(); ++i) EXPECT_EQ(event.tokens[i], event.logprobs[i].token);
    text += event.text;
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    // Never a token whose text is still held back, never text without its token.
    EXPECT_TRUE(model_->tokenizer().decode(tokens).starts_with(text));
    if (!tokens.empty() && !event.finished) {
      tokens.pop_back();
      EXPECT_TRUE(text.size() > model_->tokenizer().decode(tokens).size());
      tokens.push_back(event.tokens.empty() ? 0 : event.tokens.back());
    }
  });
  const Collected answer = client_.wait(id);
  EXPECT_EQ(answer.text, "DEFGHIJKLMNOP");
  EXPECT_EQ(answer.logprobs.size(), 7u);
  for (const TokenLogprob& logprob : answer.logprobs) {
    EXPECT_GT(logprob.logprob, -1e-3f);
    ASSERT_EQ(logprob.top.size(), 2u);
  }
}

TEST_F(Serving, CharactersSplitOverTokens) {
  Collected answer = client_.ask(request({"1"}, 5));
  EXPECT_EQ(answer.text,
            "\xF0\x9F\x8C\xB6"
            "2");
  EXPECT_EQ(answer.pieces, (std::vector<std::string>{"\xF0\x9F\x8C\xB6", "2"}));
  EXPECT_EQ(answer.tokens.size(), 5u);
  answer = client_.ask(request({"3"}, 4));
  EXPECT_EQ(answer.text,
            "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB"
            "4");
  for (const std::string& piece : answer.pieces) EXPECT_TRUE(is_valid_utf8(piece));
  answer = client_.ask(request({"1"}, 2));  // cut inside a character
  EXPECT_EQ(answer.text, "\xEF\xBF\xBD");
  EXPECT_EQ(answer.finish_reason, "length");
  answer = client_.ask(request({"6"}, 3));
  EXPECT_EQ(answer.text,
            "\xEF\xBF\xBD"
            "A7");
  answer = client_.ask(request({"5"}));
  EXPECT_EQ(answer.text, "\xEF\xBF\xBD");
  EXPECT_EQ(answer.finish_reason, "stop");
  // The prompt ends inside a character: nothing of it comes back.
  answer = client_.ask(request({"1", "\xF0", "\x9F", "\x8C"}, 2));
  EXPECT_EQ(answer.text,
            "\xEF\xBF\xBD"
            "2");
}

TEST_F(Serving, TheEndTokenIsNoTokenButHasALogprob) {
  GenerationRequest r = request({"OP"}, 5);
  for (const int count : {1, -1}) {
    r.num_logprobs = count;
    std::vector<TokenLogprob> ends;
    const RequestId id = client_.start(r, [&](const TokenEvent& event) {
      if (event.end_logprob) ends.push_back(*event.end_logprob);
    });
    const Collected answer = client_.wait(id);
    EXPECT_TRUE(answer.tokens.empty() && answer.logprobs.empty());
    ASSERT_EQ(ends.size(), count < 0 ? 0u : 1u);
    for (const TokenLogprob& end : ends) EXPECT_TRUE(end.token == ScriptModel::kEnd && end.logprob > -1e-3f);
  }
}

TEST_F(Serving, TinyTemperaturesGiveTheGreedyText) {
  for (const float temperature : {0.0f, 1e-4f, 1e-8f}) {
    GenerationRequest r = letters({});
    r.sampling.temperature = temperature;
    r.sampling.top_k = 100000;
    EXPECT_EQ(client_.ask(r).text, "DEFGHIJKLMNOP");
  }
}

TEST_F(Serving, PromptLogprobs) {
  GenerationRequest r = request({"ABC", "DEF", "z", "G"}, 1);
  r.prompt_logprobs = true;
  r.num_logprobs = 1;
  for (const int64_t max_tokens : {1, 0}) {
    r.max_tokens = max_tokens;
    const Collected answer = client_.ask(r);
    ASSERT_EQ(answer.prompt_logprobs.size(), 4u);
    EXPECT_TRUE(std::isnan(answer.prompt_logprobs[0].logprob));
    EXPECT_GT(answer.prompt_logprobs[1].logprob, -1e-3f);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(answer.prompt_logprobs[i].token, r.prompt[i]);
    // After DEF comes G, not z; after z comes z, not G.
    EXPECT_LT(answer.prompt_logprobs[2].logprob, answer.prompt_logprobs[1].logprob - 20);
    EXPECT_EQ(answer.prompt_logprobs[2].top[0].first, script_.id("G"));
    EXPECT_EQ(answer.tokens.size(), static_cast<size_t>(max_tokens));
  }
}

TEST_F(Serving, PromptLogprobsOfALongPromptWithACachedPrefix) {
  GenerationRequest r = request({}, 2);
  for (int i = 0; i < 200; ++i) r.prompt.push_back(static_cast<TokenId>('a' + i % 7));
  const Collected plain = client_.ask(r);  // its pages are cached now
  r.prompt_logprobs = true;
  r.num_logprobs = 0;
  const Collected scored = client_.ask(r);
  EXPECT_EQ(scored.prompt_logprobs.size(), 200u);
  EXPECT_EQ(scored.tokens, plain.tokens);
  EXPECT_EQ(scored.cached_tokens, 0);
  r.prompt_logprobs = false;
  EXPECT_EQ(client_.ask(r).cached_tokens, 192);
}

}  // namespace
}  // namespace octavo
