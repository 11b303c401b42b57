// ServingEngine on a model that follows a script: ends, limits, errors, cancels.
#include "engine/serving.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "engine/generate.h"
#include "engine/serving_memory.h"
#include "support/serving_fixture.h"

namespace octavo {
namespace {

TEST_F(Serving, StopIdsAndMinTokens) {
  GenerationRequest r = letters({});
  r.stop_token_ids = script_.ids({"J"});
  Collected answer = client_.ask(r);
  EXPECT_EQ(answer.text, "DEFGHI");
  EXPECT_EQ(answer.finish_reason, "stop");
  // A stop string inside the first min_tokens tokens does not count.
  r = letters({"G", "K"});
  r.min_tokens = 3;
  answer = client_.ask(r);
  EXPECT_EQ(answer.text, "DEFGHIJ");
  EXPECT_EQ(answer.completion_tokens, 4);
  // An end token is not chosen before min_tokens: the script goes nowhere else, all other logits are 0.
  r = letters({});
  r.min_tokens = 9;
  answer = client_.ask(r);
  EXPECT_GE(answer.completion_tokens, 9);
}

TEST_F(Serving, IgnoreEos) {
  GenerationRequest r = letters({}, 12);
  r.ignore_eos = true;
  const Collected answer = client_.ask(r);
  EXPECT_EQ(answer.text, "DEFGHIJKLMNOP");
  EXPECT_EQ(answer.tokens.size(), 12u);  // the end token repeats and is no text
  EXPECT_EQ(answer.finish_reason, "length");
}

TEST_F(Serving, ContextLimits) {
  const auto of_length = [&](int64_t n, int64_t max_tokens) {
    GenerationRequest r = request({}, max_tokens);
    r.prompt.assign(static_cast<size_t>(n), script_.id("z"));  // z follows z
    return r;
  };
  for (const int64_t length : {256, 257, 300}) {
    const auto refused = engine_.submit(of_length(length, 10), {});
    ASSERT_FALSE(refused.has_value()) << length;
    EXPECT_EQ(refused.error().where, "prompt");
    EXPECT_NE(refused.error().message().find("256"), std::string::npos);
    EXPECT_NE(refused.error().message().find(std::to_string(length)), std::string::npos);
  }
  for (const int64_t max_tokens : {int64_t{100}, INT64_MAX}) {
    const Collected answer = client_.ask(of_length(250, max_tokens));
    EXPECT_EQ(answer.completion_tokens, 6);
    EXPECT_EQ(answer.finish_reason, "length");
  }
  EXPECT_EQ(client_.ask(of_length(255, 100)).completion_tokens, 1);
  const Collected nothing = client_.ask(of_length(3, 0));
  EXPECT_EQ(nothing.completion_tokens, 0);
  EXPECT_EQ(nothing.finish_reason, "length");
  const auto negative = engine_.submit(of_length(3, -1), {});
  ASSERT_FALSE(negative.has_value());
  EXPECT_EQ(negative.error().where, "max_tokens");
  expect_alive();
}

TEST_F(Serving, IdsOutsideTheVocabularyAreRefused) {
  for (const TokenId id : {-1, 512, 1 << 30}) {
    GenerationRequest r = letters({});
    r.prompt.push_back(id);
    EXPECT_EQ(engine_.submit(r, {}).error().where, "prompt");
    r = letters({});
    r.stop_token_ids = {id};
    EXPECT_EQ(engine_.submit(r, {}).error().where, "stop_token_ids");
    r = letters({});
    r.sampling.logit_bias[id] = 1;
    EXPECT_EQ(engine_.submit(r, {}).error().where, "logit_bias");
  }
  GenerationRequest empty = letters({});
  empty.prompt.clear();
  EXPECT_EQ(engine_.submit(empty, {}).error().where, "prompt");
  expect_alive();
}

// Head row 505 has the largest logit everywhere; the tokenizer ends at 499.
TEST(ServingVocabulary, RowsBeyondTheTokenizerAreNeverChosenNorListed) {
  const ScriptModel script(kScripts, 256, {505});
  const std::unique_ptr<Model> model = script.load("bf16");
  ServingEngine engine(*model, {.kv_cache_tokens = 512});
  ServingClient client(engine);
  GenerationRequest r;
  r.prompt = script.ids({"ABC"});
  r.num_logprobs = 20;
  for (const float temperature : {0.0f, 1.0f}) {
    r.sampling.temperature = temperature;
    const Collected answer = client.ask(r);
    ASSERT_FALSE(answer.tokens.empty());
    if (temperature == 0.0f) {
      EXPECT_EQ(answer.text, "DEFGHIJKLMNOP");
    }
    for (const TokenId id : answer.tokens) EXPECT_LT(id, ScriptModel::kTokens);
    for (const TokenLogprob& logprob : answer.logprobs)
      for (const auto& [id, value] : logprob.top) {
        EXPECT_LT(id, ScriptModel::kTokens);
        EXPECT_TRUE(std::isfinite(value));
        EXPECT_GE(value, -9999.0f);
      }
  }
}

TEST_F(Serving, BadSamplingValuesAreRefusedByName) {
  const auto field = [&](auto change) {
    GenerationRequest r = letters({});
    change(r);
    const auto result = engine_.submit(r, {});
    return result ? std::string("accepted") : result.error().where;
  };
  for (const float bad : {NAN, INFINITY, -1.0f, 999999.0f})
    EXPECT_EQ(field([&](auto& r) { r.sampling.temperature = bad; }), "temperature") << bad;
  for (const float bad : {NAN, -1.0f, 0.0f, 1.5f})
    EXPECT_EQ(field([&](auto& r) { r.sampling.top_p = bad; }), "top_p") << bad;
  for (const int64_t bad : {int64_t{-2}, int64_t{1000000000000}})
    EXPECT_EQ(field([&](auto& r) { r.sampling.top_k = bad; }), "top_k") << bad;
  EXPECT_EQ(field([&](auto& r) { r.sampling.min_p = 2; }), "min_p");
  for (const float bad : {0.0f, -1.0f, NAN})
    EXPECT_EQ(field([&](auto& r) { r.sampling.repetition_penalty = bad; }), "repetition_penalty") << bad;
  EXPECT_EQ(field([&](auto& r) { r.sampling.presence_penalty = 1e30f; }), "presence_penalty");
  EXPECT_EQ(field([&](auto& r) { r.sampling.frequency_penalty = NAN; }), "frequency_penalty");
  EXPECT_EQ(field([&](auto& r) { r.sampling.logit_bias[5] = 1e30f; }), "logit_bias");
  EXPECT_EQ(field([&](auto& r) { r.sampling.logit_bias[5] = NAN; }), "logit_bias");
  EXPECT_EQ(field([&](auto& r) { r.num_logprobs = 21; }), "logprobs");
  EXPECT_EQ(field([&](auto& r) { r.min_tokens = 21; }), "min_tokens");
  expect_alive();
}

TEST_F(Serving, CancelAtOnceAndTwiceAndUnknown) {
  GenerationRequest r = request({"z"}, 200);
  const RequestId id = client_.start(r);
  engine_.cancel(id);
  engine_.cancel(id);
  engine_.cancel(987654321);
  const Collected answer = client_.wait(id);
  EXPECT_EQ(answer.finish_reason, "abort");
  EXPECT_EQ(answer.finishes, 1);
  engine_.cancel(id);
  engine_.drain();
  EXPECT_EQ(engine_.stats().aborted, 1u);
  expect_alive();
}

TEST_F(Serving, AFailingSinkAndAFailingFilterEndOnlyTheirRequests) {
  GenerationRequest endless = request({"z"}, 200);
  ASSERT_TRUE(engine_.submit(endless, [](const TokenEvent&) { throw std::runtime_error("client is gone"); }));
  GenerationRequest filtered = letters({});
  filtered.allow = [](std::span<const TokenId>, std::vector<bool>&) { throw std::runtime_error("bad grammar"); };
  const Collected failed = client_.ask(filtered);
  EXPECT_EQ(failed.finish_reason, "error");
  ASSERT_TRUE(failed.error.has_value());
  EXPECT_EQ(failed.error->found, "bad grammar");
  filtered.allow = [](std::span<const TokenId>, std::vector<bool>&) {};  // nothing may follow
  EXPECT_EQ(client_.ask(filtered).finish_reason, "error");
  engine_.drain();
  expect_alive();
}

TEST_F(Serving, AFilterDecidesWhatMayFollow) {
  GenerationRequest r = letters({}, 4);
  const TokenId g = script_.id("G"), z = script_.id("z");
  r.allow = [&](std::span<const TokenId> generated, std::vector<bool>& allowed) {
    allowed[static_cast<size_t>(generated.size() % 2 == 0 ? g : z)] = true;
  };
  EXPECT_EQ(client_.ask(r).text, "GzGz");
}

TEST_F(Serving, LogitBiasAndPenalties) {
  GenerationRequest r = request({"z"}, 4);
  EXPECT_EQ(client_.ask(r).text, "zzzz");
  r.sampling.logit_bias[script_.id("y")] = 100;
  EXPECT_EQ(client_.ask(r).text, "yyyy");
  r.sampling.logit_bias.clear();
  r.sampling.frequency_penalty = 2;  // z: 22.6 - 2 per time; the others stay at 0
  r.max_tokens = 14;
  Collected answer = client_.ask(r);
  EXPECT_EQ(answer.text.substr(0, 12), "zzzzzzzzzzzz");
  EXPECT_NE(answer.text.substr(12), "zz");
}

TEST_F(Serving, TheQueueHasAnEnd) {
  ServingEngine small(*model_, {.kv_cache_tokens = 256, .max_num_seqs = 1, .max_queue = 2});
  GenerationRequest r = request({"z"}, 100);
  std::atomic<int> finished{0};
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20; ++i) {
    const auto id = small.submit(r, [&](const TokenEvent& event) { finished += event.finished; });
    if (id) {
      ++accepted;
    } else {
      ++refused;
      EXPECT_EQ(id.error().what, "queue is full");
    }
  }
  EXPECT_GE(accepted, 2);
  EXPECT_GT(refused, 0);
  small.drain();
  EXPECT_EQ(finished, accepted);
}

TEST_F(Serving, TheMemoryLimitHoldsForACacheOfGivenSize) {
  EXPECT_EQ(plan_kv_cache_tokens(*model_, {.kv_cache_tokens = 500}), 512);
  EXPECT_EQ(plan_kv_cache_tokens(*model_, {.kv_cache_tokens = 500, .memory_limit = int64_t{1} << 40}), 512);
  const auto small = plan_kv_cache_tokens(*model_, {.kv_cache_tokens = 500, .memory_limit = 1000});
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().where, "memory_limit");
}

TEST_F(Serving, DestructionCancelsWhatIsLeft) {
  std::atomic<int> aborted{0};
  {
    ServingEngine engine(*model_, {.kv_cache_tokens = 512});
    for (int i = 0; i < 5; ++i)
      ASSERT_TRUE(engine.submit(request({"z"}, 250), [&](const TokenEvent& event) {
        aborted += event.finished && event.finish_reason == "abort";
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // nobody is done before the destruction
      }));
  }
  EXPECT_EQ(aborted, 5);
}

TEST_F(Serving, GenerateAgrees) {
  for (const std::vector<std::string>& stop :
       {std::vector<std::string>{}, {"FGH"}, {"G", "EFGHI"}, {"DEFGHIJ"}, {"NOPX"}}) {
    const Collected served = client_.ask(letters(stop));
    PagePool kv = model_->make_kv_cache(256);
    Sequence sequence(*model_, kv);
    GenerateOptions options;
    options.max_tokens = 20;
    options.stop = stop;
    std::string streamed;
    const auto prompt = script_.ids({"ABC"});
    engine_.drain();
    const auto result = generate(*model_, sequence, prompt, options, [&](std::string_view piece) {
      streamed += piece;
      return true;
    });
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->text, served.text);
    EXPECT_EQ(streamed, served.text);
    EXPECT_EQ(result->tokens, served.tokens);
    EXPECT_EQ(result->finish_reason, served.finish_reason);
  }
}

TEST_F(Serving, CountersAddUp) {
  uint64_t prompt = 0, completion = 0;
  for (int i = 0; i < 12; ++i) {
    const Collected answer = client_.ask(i % 3 == 0 ? letters({}, 3) : letters({"K"}));
    prompt += static_cast<uint64_t>(answer.prompt_tokens);
    completion += static_cast<uint64_t>(answer.completion_tokens);
  }
  const Collected longer = client_.ask(request({"1", "2", "3", "4", "5"}, 2));
  prompt += static_cast<uint64_t>(longer.prompt_tokens);
  completion += static_cast<uint64_t>(longer.completion_tokens);
  const EngineStats stats = engine_.stats();
  EXPECT_EQ(stats.prompt_tokens, prompt);
  EXPECT_EQ(stats.generation_tokens, completion);
  EXPECT_EQ(stats.finished.at("stop"), 9u);
  EXPECT_EQ(stats.finished.at("length"), 4u);
  EXPECT_EQ(stats.prefill.steps + stats.decode.steps, stats.steps);
  EXPECT_GE(stats.decode.rows, static_cast<int64_t>(completion));
  EXPECT_EQ(stats.prefill.rows, 5);
  for (const StepTotals* totals : {&stats.prefill, &stats.decode}) {
    EXPECT_GT(totals->seconds, 0);
    EXPECT_GT(totals->bytes, static_cast<double>(totals->steps * model_->decoder().report().linear_bytes));
    EXPECT_GT(totals->operations, 0);
    EXPECT_EQ(totals->bound_seconds, 0) << "the roofline was not measured";
  }
  EXPECT_EQ(stats.pages_total, 32);
}

}  // namespace
}  // namespace octavo
