// The tokens of a request do not depend on batch mates, chunks, cache hits, preemption or threads, and are those of
// generate(). Random schedules over real layers; the same under load with cancels.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "base/random.h"
#include "engine/generate.h"
#include "quantize/model_folder.h"
#include "support/byte_tokenizer_json.h"
#include "support/kv_calibration_file.h"
#include "support/serving_client.h"
#include "support/test_models.h"

namespace octavo {
namespace {

constexpr int64_t kVocab = 320;

// Requests of all kinds; every fourth greedy, the others seeded; some share a prefix.
std::vector<GenerationRequest> random_requests(Random& random, int count, int64_t longest, int64_t longest_answer) {
  std::vector<TokenId> shared(static_cast<size_t>(longest));
  for (TokenId& id : shared) id = static_cast<TokenId>(random.below(kVocab));
  std::vector<GenerationRequest> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    GenerationRequest& r = requests[i];
    r.prompt.resize(1 + random.below(static_cast<uint64_t>(longest)));
    const size_t copied = random.below(3) == 0 ? random.below(r.prompt.size() + 1) : 0;
    for (size_t t = 0; t < r.prompt.size(); ++t)
      r.prompt[t] = t < copied ? shared[t] : static_cast<TokenId>(random.below(kVocab));
    r.max_tokens = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(longest_answer)));
    r.ignore_eos = random.below(4) != 0;
    if (i % 4 != 0) r.sampling.temperature = random.uniform(0.3f, 1.5f);
    if (i % 4 == 2) r.sampling.top_p = random.uniform(0.5f, 0.99f);
    if (i % 4 == 3) r.sampling.top_k = 1 + static_cast<int64_t>(random.below(100));
    if (i % 5 == 0) r.sampling.repetition_penalty = 1.3f;
    if (i % 7 == 0) r.sampling.frequency_penalty = 0.5f;
    if (i % 11 == 0) r.stop = {std::string(1, static_cast<char>('a' + random.below(26)))};
    if (i % 13 == 0) r.cache_salt = "salt";
    r.sampling.seed = random.next();
  }
  return requests;
}

struct SoloAnswer {
  std::vector<TokenId> tokens;
  std::string text, finish_reason;
};

std::vector<SoloAnswer> solo_answers(Model& model, const std::vector<GenerationRequest>& requests) {
  std::vector<SoloAnswer> answers;
  PagePool kv = model.make_kv_cache(model.config().context_length());
  for (const GenerationRequest& r : requests) {
    Sequence sequence(model, kv);
    GenerateOptions options{.sampling = r.sampling,
                            .max_tokens = r.max_tokens,
                            .min_tokens = r.min_tokens,
                            .stop = r.stop,
                            .stop_token_ids = r.stop_token_ids,
                            .ignore_end = r.ignore_eos};
    auto result = generate(model, sequence, r.prompt, options, [](std::string_view) { return true; });
    if (!result) throw std::runtime_error(result.error().message());
    answers.push_back({result->tokens, result->text, result->finish_reason});
  }
  return answers;
}

void expect_same(const Collected& got, const SoloAnswer& solo, const std::string& where) {
  EXPECT_EQ(got.tokens, solo.tokens) << where;
  EXPECT_EQ(got.text, solo.text) << where;
  EXPECT_EQ(got.finish_reason, solo.finish_reason) << where;
}

// So that it finds the highest logits by a copy of its head, however small that is.
void add_greedy_head(Model& model) {
  ASSERT_TRUE(model.decoder().load_greedy_head(model.checkpoint(), model.isa(), model.pool(), 0));
  ASSERT_NE(model.decoder().greedy_head(), nullptr);
}

struct Format {
  const char* model;
  const char* scheme;
  const char* kv = "";  // with values made up
};

class SameTokens : public testing::TestWithParam<Format> {};

TEST_P(SameTokens, UnderAnySchedule) {
  const TinyModelFolder folder(GetParam().model);
  const std::string kv = GetParam().kv;
  if (!kv.empty()) {
    const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
    write_kv_calibration(folder.path() / kKvCalibrationName, made_up_kv_calibration(checkpoint.config()),
                         checkpoint.config());
  }
  Random random(5);
  const auto requests = random_requests(random, 32, 80, 90);
  std::vector<SoloAnswer> solo;
  uint64_t hits = 0, preemptions = 0;
  for (const int threads : {1, 2, 3}) {
    const std::unique_ptr<Model> model = load_test_model(folder.path(), GetParam().scheme, threads, std::nullopt, kv);
    if (solo.empty()) solo = solo_answers(*model, requests);
    if (threads == 2) add_greedy_head(*model);
    const ServingOptions schedules[] = {
        {.kv_cache_tokens = 8192, .max_num_batched_tokens = 512, .max_num_seqs = 32},
        {.kv_cache_tokens = 8192, .max_num_batched_tokens = 37, .max_num_seqs = 32},
        {.kv_cache_tokens = 192, .max_num_batched_tokens = 64, .max_num_seqs = 16},  // preempts
        {.kv_cache_tokens = 1024, .max_num_batched_tokens = 5, .max_num_seqs = 3, .prefix_cache = false},
    };
    for (const ServingOptions& options : schedules) {
      // Threads change who computes a row, not which rows there are: two schedules show it, one of them preempts.
      if (threads > 1 && &options != &schedules[threads == 2 ? 1 : 2]) continue;
      ServingEngine engine(*model, options);
      ServingClient client(engine);
      for (int round = 0; round < (threads == 1 ? 2 : 1); ++round) {  // in the second, prefixes are cached
        std::vector<RequestId> ids;
        const size_t count = threads == 1 ? requests.size() : size_t{6};
        for (size_t i = 0; i < count; ++i) ids.push_back(client.start(requests[i]));
        for (size_t i = 0; i < ids.size(); ++i)
          expect_same(client.wait(ids[i]), solo[i],
                      fmt::format("request {}, {} threads, budget {}, round {}", i, threads,
                                  options.max_num_batched_tokens, round));
      }
      engine.drain();
      const EngineStats stats = engine.stats();
      EXPECT_EQ(stats.pages_used, 0);
      hits += stats.prefix_hits;
      preemptions += stats.preemptions;
    }
  }
  EXPECT_GT(hits, 0u);
  EXPECT_GT(preemptions, 0u);
}

INSTANTIATE_TEST_SUITE_P(Formats, SameTokens,
                         testing::Values(Format{"llama_untied_hd64", "fp8"}, Format{"llama_tied", "int8"},
                                         Format{"qwen3_qk_norm", "bf16"}, Format{"mistral_sliding", "fp8"},
                                         Format{"mixtral", "fp8"}, Format{"qwen3_moe", "int8"},
                                         Format{"llama_tied", "fp8", "fp8_e4m3:block32:wide3"},
                                         Format{"llama_untied_hd64", "bf16", "int8:channel:static:wide2:temperature"}),
                         [](const auto& instance) {
                           std::string text = fmt::format("{}_{}", instance.param.model, instance.param.scheme);
                           if (*instance.param.kv != 0) text += '_';
                           for (const char c : std::string(instance.param.kv)) text += std::isalnum(c) ? c : '_';
                           return text;
                         });

// Greedy answers with and without the greedy head, alone and three at a time, beside what asks for all logits.
TEST(SameTokensGreedyHead, AreThoseOfAllLogits) {
  for (const char* name : {"llama_tied", "qwen3_qk_norm"}) {
    const TinyModelFolder folder(name);
    Random random(12);
    auto requests = random_requests(random, 24, 60, 60);
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerationRequest& r = requests[i];
      const auto seed = r.sampling.seed;
      r.sampling = {.seed = seed};
      if (i % 6 == 1) r.min_tokens = std::min<int64_t>(5, r.max_tokens);
      if (i % 6 == 3) r.sampling.temperature = 0.8f;
      if (i % 6 == 4) r.sampling.temperature = 0.8f, r.sampling.top_k = 1;
      if (i % 6 == 5) r.sampling.logit_bias = {{7, 3.0f}};
    }
    const auto solo = solo_answers(*load_test_model(folder.path(), "fp8", 2), requests);
    const std::unique_ptr<Model> model = load_test_model(folder.path(), "fp8", 2);
    add_greedy_head(*model);
    const auto with_head = solo_answers(*model, requests);
    ServingEngine engine(*model, {.kv_cache_tokens = 4096, .max_num_batched_tokens = 64, .max_num_seqs = 3});
    ServingClient client(engine);
    std::vector<RequestId> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerationRequest request = requests[i];
      if (i % 6 == 2) request.num_logprobs = 2;
      ids.push_back(client.start(request));
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(with_head[i].tokens, solo[i].tokens) << i;
      expect_same(client.wait(ids[i]), solo[i], fmt::format("{}, request {}", name, i));
    }
  }
}

// Logprobs are the same bits too, alone and in company.
TEST(SameTokensLogprobs, AloneAndInCompany) {
  const TinyModelFolder folder("llama_untied_hd64");
  const std::unique_ptr<Model> model = load_test_model(folder.path(), "fp8");
  Random random(8);
  auto requests = random_requests(random, 24, 120, 10);
  ServingEngine engine(*model, {.kv_cache_tokens = 1024, .max_num_batched_tokens = 48});
  ServingClient client(engine);
  for (size_t i = 0; i < 8; ++i) {
    requests[i].num_logprobs = static_cast<int>(i);
    requests[i].prompt_logprobs = i % 2 == 0;
  }
  std::vector<Collected> alone;
  for (size_t i = 0; i < 8; ++i) alone.push_back(client.ask(requests[i]));
  std::vector<RequestId> ids;
  for (const GenerationRequest& r : requests) ids.push_back(client.start(r));
  for (size_t i = 0; i < 8; ++i) {
    const Collected together = client.wait(ids[i]);
    for (const auto part : {&Collected::logprobs, &Collected::prompt_logprobs}) {
      const auto &a = alone[i].*part, &b = together.*part;
      ASSERT_EQ(a.size(), b.size());
      for (size_t t = 0; t < a.size(); ++t) {
        EXPECT_TRUE(a[t].logprob == b[t].logprob || (t == 0 && std::isnan(a[t].logprob)));
        EXPECT_EQ(a[t].top, b[t].top);
      }
    }
  }
}

int64_t resident_kilobytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  return 0;
}

// Many requests at a pool that is too small, with clients that leave at any moment: all end, none differs from its
// solo answer, every page comes back, memory stays where it is.
void run_under_load(int count, int threads) {
  const TinyModelFolder folder("llama_untied_hd64");
  const std::unique_ptr<Model> model = load_test_model(folder.path(), "fp8", threads);
  Random random(static_cast<uint64_t>(count));
  const auto requests = random_requests(random, 40, 60, 160);
  const auto solo = solo_answers(*model, requests);
  ServingEngine engine(*model,
                       {.kv_cache_tokens = 512, .max_num_batched_tokens = 96, .max_num_seqs = 24, .max_queue = 40});
  std::atomic<int> finished{0}, wrong{0};
  int accepted = 0, refused = 0;
  int64_t resident = 0;
  for (int i = 0; i < count; ++i) {
    if (i == count / 3) resident = resident_kilobytes();
    const size_t which = random.below(requests.size());
    const bool leaves = random.below(3) == 0;
    const int leaves_after = static_cast<int>(random.below(8));
    auto tokens = std::make_shared<std::vector<TokenId>>();
    auto events = std::make_shared<int>(0);
    const SoloAnswer& expected = solo[which];
    auto id = engine.submit(requests[which], [&, tokens, events, leaves, leaves_after](const TokenEvent& event) {
      tokens->insert(tokens->end(), event.tokens.begin(), event.tokens.end());
      if (leaves && ++*events == leaves_after) engine.cancel(event.id);
      if (!event.finished) return;
      const bool right =
          event.finish_reason == "abort"
              ? leaves && std::equal(tokens->begin(), tokens->end(), expected.tokens.begin(),
                                     expected.tokens.begin() +
                                         static_cast<ptrdiff_t>(std::min(tokens->size(), expected.tokens.size())))
              : *tokens == expected.tokens && event.finish_reason == expected.finish_reason;
      wrong += !right;
      ++finished;
    });
    if (!id) {
      ++refused;
      EXPECT_EQ(id.error().what, "queue is full");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    ++accepted;
    if (leaves && leaves_after == 0) engine.cancel(*id);
  }
  engine.drain();
  EXPECT_EQ(finished, accepted);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(accepted, count / 10);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.pages_used, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_GT(stats.preemptions, 0u);
  EXPECT_GT(stats.aborted, 0u);
  EXPECT_LT(resident_kilobytes(), resident + resident / 20) << "memory grew";
}

TEST(ServingLoad, RandomRequestsAndCancelsAtASmallPool) {
#ifdef __SANITIZE_THREAD__
  run_under_load(150, 2);
#else
  run_under_load(1000, 1);
#endif
}

// A token whose embedding is zero gives rows of zeros everywhere: scales of 1, no NaN, and nothing for its neighbours.
TEST(ZeroEmbedding, LeavesItsNeighboursAlone) {
  const TestFolder folder;
  constexpr TokenId kZero = 7;
  std::string config(kOddModel);
  config.replace(config.find("\"vocab_size\": 96"), 16, "\"vocab_size\": 320");
  write_model(folder / "model", config, ElementType::kBf16,
              [](const std::string& name, std::vector<float>& values, const Shape& shape) {
                if (name != "model.embed_tokens.weight") return;
                const auto cols = static_cast<size_t>(shape[1]);
                std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(kZero * cols), cols, 0.0f);
              });
  std::ofstream(folder / "model/tokenizer.json") << byte_tokenizer_json({}, 320, {1, 2});
  for (const char* scheme : {"fp8", "int8", "fp8-block", "mxfp8"}) {
    const std::unique_ptr<Model> model = load_test_model(folder / "model", scheme);
    GenerationRequest zeros, normal;
    zeros.prompt = {kZero, kZero, kZero};
    for (TokenId id = 20; id < 60; ++id) normal.prompt.push_back(id);
    zeros.max_tokens = normal.max_tokens = 20;
    zeros.ignore_eos = normal.ignore_eos = true;
    zeros.num_logprobs = 3;
    const std::vector<SoloAnswer> solo = solo_answers(*model, {zeros, normal});
    ServingEngine engine(*model, {.kv_cache_tokens = 1024, .max_num_batched_tokens = 64});
    ServingClient client(engine);
    const RequestId first = client.start(zeros), second = client.start(normal);
    const Collected of_zeros = client.wait(first);
    ASSERT_FALSE(of_zeros.error.has_value()) << of_zeros.error->message();
    expect_same(of_zeros, solo[0], scheme);
    expect_same(client.wait(second), solo[1], scheme);
    ASSERT_EQ(of_zeros.logprobs.size(), 20u);
    for (const TokenLogprob& token : of_zeros.logprobs) EXPECT_TRUE(std::isfinite(token.logprob)) << scheme;
  }
}

}  // namespace
}  // namespace octavo
