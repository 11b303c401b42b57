// The scheduler under a simulated clock, with a runner that writes down what a KV cache would hold.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"

namespace octavo {
namespace {

KvGeometry tiny_geometry() {
  return {.layers = {{plain_format(ElementType::kBf16), plain_format(ElementType::kBf16)}},
          .num_kv_heads = 1,
          .head_dim = 2};
}

uint64_t mix(uint64_t state, TokenId token) {
  return Random(state * 31 + static_cast<uint64_t>(token)).next();
}

// What a model would say: the next token depends on every token before it.
std::vector<TokenId> expected_answer(std::vector<TokenId> tokens, int64_t count) {
  const size_t num_prompt = tokens.size();
  uint64_t state = 0;
  for (const TokenId token : tokens) state = mix(state, token);
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(state % 1000));
    state = mix(state, tokens.back());
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(num_prompt), tokens.end()};
}

// Keeps, for every slot of every page, the hash of the text that ends there. A share may only build on slots that hold
// the hashes of exactly its own text: a page given away too early, shared wrongly or not computed is seen at once.
class FakeRunner {
 public:
  explicit FakeRunner(int32_t pages) : slots_(static_cast<size_t>(pages) * kPageTokens) {}

  // The next tokens of the shares that sample.
  std::map<RequestId, TokenId> run(const Step& step, const std::map<RequestId, std::vector<TokenId>>& texts) {
    std::map<RequestId, TokenId> sampled;
    for (const Share& share : step.shares) {
      const std::vector<TokenId>& text = texts.at(share.id);
      uint64_t state = 0;
      for (int64_t position = 0; position < share.position; ++position) {
        state = mix(state, text[static_cast<size_t>(position)]);
        EXPECT_EQ(slot(share, position), state) << "request " << share.id << ", position " << position;
      }
      for (int64_t row = 0; row < share.num_rows; ++row) {
        EXPECT_EQ(share.tokens[static_cast<size_t>(row)], text[static_cast<size_t>(share.position + row)]);
        state = mix(state, share.tokens[static_cast<size_t>(row)]);
        slot(share, share.position + row) = state;
      }
      if (share.samples) sampled[share.id] = static_cast<TokenId>(state % 1000);
    }
    return sampled;
  }

 private:
  uint64_t& slot(const Share& share, int64_t position) {
    const int32_t page = share.pages[static_cast<size_t>(position / kPageTokens)];
    return slots_[static_cast<size_t>(page) * kPageTokens + static_cast<size_t>(position % kPageTokens)];
  }
  std::vector<uint64_t> slots_;
};

struct Client {
  std::vector<TokenId> prompt;
  std::string salt;
  int64_t max_tokens = 1;
  int64_t arrives = 0;         // step
  int64_t leaves = INT64_MAX;  // cancels at this step
  bool score = false;
  // Progress.
  std::vector<TokenId> answer;
  int64_t scored = 0, finished_at = -1;
};

class Simulation {
 public:
  Simulation(int32_t pages, const SchedulerOptions& options, bool prefix_cache = true)
      : pool_(tiny_geometry(), pages),
        cache_(pool_, prefix_cache),
        scheduler_(cache_, options),
        options_(options),
        runner_(pages) {}

  void run(std::vector<Client>& clients) {
    std::vector<RequestId> order;  // of first shares
    size_t pending = clients.size();
    for (int64_t now = 0; pending > 0; ++now) {
      ASSERT_LT(now, 200000) << "requests do not end";
      for (RequestId id = 0; id < clients.size(); ++id) {
        Client& client = clients[id];
        if (client.arrives == now) {
          scheduler_.add(id, client.prompt, client.salt, client.score);
          texts_[id] = client.prompt;
        }
        if (client.leaves == now && client.finished_at < 0 && client.arrives <= now) end(id, client, now, pending);
      }
      const Step step = scheduler_.next();
      check(step);
      // Somebody always moves.
      ASSERT_EQ(step.empty(), scheduler_.empty());
      for (const Share& share : step.shares) {
        if (std::find(order.begin(), order.end(), share.id) == order.end()) order.push_back(share.id);
        if (clients[share.id].score) clients[share.id].scored += scored_rows(share, clients[share.id]);
      }
      const auto sampled = runner_.run(step, texts_);
      scheduler_.complete(step);
      balanced();
      for (const auto& [id, token] : sampled) {
        Client& client = clients[id];
        client.answer.push_back(token);
        texts_[id].push_back(token);
        if (static_cast<int64_t>(client.answer.size()) == client.max_tokens)
          end(id, client, now, pending);
        else
          scheduler_.append(id, token);
      }
      balanced();
    }
    EXPECT_TRUE(scheduler_.empty());
    EXPECT_EQ(cache_.num_held(), 0);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [&](RequestId a, RequestId b) {
      return std::pair(clients[a].arrives, a) < std::pair(clients[b].arrives, b);
    })) << "requests start in the order of their arrival";
  }

  Scheduler& scheduler() { return scheduler_; }
  PrefixCache& cache() { return cache_; }
  int64_t largest_step = 0, most_shares = 0;

 private:
  void end(RequestId id, Client& client, int64_t now, size_t& pending) {
    scheduler_.remove(id);
    scheduler_.remove(id);  // twice is nothing
    client.finished_at = now;
    --pending;
    balanced();
  }
  void balanced() { ASSERT_EQ(cache_.num_free() + cache_.num_cached() + cache_.num_held(), cache_.num_pages()); }
  static int64_t scored_rows(const Share& share, const Client& client) {
    const int64_t last = static_cast<int64_t>(client.prompt.size()) - 1;
    return std::max<int64_t>(0,
                             std::min(share.position + share.num_rows, last) - (share.position + share.first_logits));
  }
  void check(const Step& step) {
    int64_t rows = 0, logits = 0;
    for (const Share& share : step.shares) {
      ASSERT_GT(share.num_rows, 0);
      ASSERT_EQ(share.tokens.size(), static_cast<size_t>(share.num_rows));
      ASSERT_GE(static_cast<int64_t>(share.pages.size()) * kPageTokens, share.position + share.num_rows);
      rows += share.num_rows;
      logits += share.num_rows - share.first_logits;
    }
    EXPECT_EQ(rows, step.num_rows);
    EXPECT_EQ(logits, step.num_logits);
    EXPECT_LE(rows, options_.max_num_batched_tokens);
    EXPECT_LE(static_cast<int64_t>(step.shares.size()), options_.max_num_seqs);
    EXPECT_LE(logits, options_.max_num_seqs + options_.max_score_rows);
    largest_step = std::max(largest_step, rows);
    most_shares = std::max(most_shares, static_cast<int64_t>(step.shares.size()));
  }

  PagePool pool_;
  PrefixCache cache_;
  Scheduler scheduler_;
  SchedulerOptions options_;
  FakeRunner runner_;
  std::map<RequestId, std::vector<TokenId>> texts_;
};

std::vector<TokenId> random_text(Random& random, int64_t count) {
  std::vector<TokenId> text;
  for (int64_t i = 0; i < count; ++i) text.push_back(static_cast<TokenId>(random.below(1000)));
  return text;
}

void expect_solo_answers(const std::vector<Client>& clients) {
  for (const Client& client : clients) {
    const auto expected = expected_answer(client.prompt, client.max_tokens);
    ASSERT_LE(client.answer.size(), expected.size());
    EXPECT_TRUE(std::equal(client.answer.begin(), client.answer.end(), expected.begin()));
    if (client.leaves != INT64_MAX) continue;
    EXPECT_EQ(client.answer.size(), expected.size());
  }
}

TEST(Scheduler, DecodesFirstAndCutsPromptsToTheBudget) {
  PagePool pool(tiny_geometry(), 64);
  PrefixCache cache(pool);
  Scheduler scheduler(cache, {.max_num_batched_tokens = 48, .max_num_seqs = 8});
  scheduler.add(1, std::vector<TokenId>(10, 1), "", false);
  scheduler.add(2, std::vector<TokenId>(100, 2), "", false);
  Step step = scheduler.next();
  ASSERT_EQ(step.shares.size(), 2u);
  EXPECT_EQ(step.shares[0].num_rows, 10);
  EXPECT_TRUE(step.shares[0].samples);
  EXPECT_EQ(step.shares[0].first_logits, 9);
  EXPECT_EQ(step.shares[1].num_rows, 38);
  EXPECT_FALSE(step.shares[1].samples);
  EXPECT_EQ(step.shares[1].first_logits, 38);
  EXPECT_EQ(step.num_logits, 1);
  scheduler.complete(step);
  scheduler.append(1, 5);
  step = scheduler.next();
  ASSERT_EQ(step.shares.size(), 2u);
  EXPECT_EQ(step.shares[0].id, 1u);
  EXPECT_EQ(step.shares[0].position, 10);
  EXPECT_EQ(step.shares[0].num_rows, 1);
  EXPECT_EQ(step.shares[1].position, 38);
  EXPECT_EQ(step.shares[1].num_rows, 47);
  EXPECT_EQ(step.prefill_rows, 47);
}

TEST(Scheduler, AFullHitComputesTheLastTokens) {
  Simulation simulation(64, {});
  Random random(1);
  std::vector<Client> clients(2);
  clients[0].prompt = clients[1].prompt = random_text(random, 96);
  clients[1].arrives = 3;
  simulation.run(clients);
  expect_solo_answers(clients);
  EXPECT_EQ(simulation.scheduler().stats().prefix_hits, 64u);  // two of three pages: one token at least is computed
  EXPECT_EQ(simulation.scheduler().stats().prefix_queries, 192u);
}

TEST(Scheduler, ALaterChunkFindsWhatAnotherComputedMeanwhile) {
  Simulation simulation(64, {.max_num_batched_tokens = 64});
  Random random(2);
  std::vector<Client> clients(3);
  for (Client& client : clients)
    client.prompt = clients[0].prompt.empty() ? random_text(random, 320) : clients[0].prompt;
  simulation.run(clients);
  expect_solo_answers(clients);
  // 3 x 320 tokens in steps of 64 would take 15 steps.
  EXPECT_LE(clients[2].finished_at, 7);
}

TEST(Scheduler, TheLatestArrivalIsPreemptedAndGoesOnWhereItWas) {
  Simulation simulation(6, {.max_num_batched_tokens = 64});
  Random random(3);
  std::vector<Client> clients(3);
  for (Client& client : clients) {
    client.prompt = random_text(random, 30);
    client.max_tokens = 80;
  }
  simulation.run(clients);
  expect_solo_answers(clients);
  EXPECT_GT(simulation.scheduler().stats().preemptions, 0u);
  EXPECT_LE(clients[0].finished_at, clients[2].finished_at);
  EXPECT_EQ(clients[0].finished_at, 79);  // the oldest is never stopped
}

TEST(Scheduler, EveryRunningRequestMovesInEveryStep) {
  Simulation simulation(256, {.max_num_batched_tokens = 4, .max_num_seqs = 64});
  Random random(4);
  std::vector<Client> clients(20);
  for (Client& client : clients) {
    client.prompt = random_text(random, 3);
    client.max_tokens = 10;
  }
  simulation.run(clients);
  expect_solo_answers(clients);
  EXPECT_LE(simulation.most_shares, 4);
}

TEST(Scheduler, ALongPromptDoesNotStopTheOthers) {
  Simulation simulation(256, {.max_num_batched_tokens = 32});
  Random random(5);
  std::vector<Client> clients(3);
  clients[0].prompt = random_text(random, 5);
  clients[0].max_tokens = 60;
  clients[1].prompt = random_text(random, 3000);
  clients[1].arrives = 2;
  clients[2].prompt = random_text(random, 5);
  clients[2].arrives = 3;
  simulation.run(clients);
  expect_solo_answers(clients);
  EXPECT_EQ(clients[0].finished_at, 59);
  EXPECT_LE(clients[1].finished_at, 2 + 3000 / 31 + 1);
}

TEST(Scheduler, ScoringSeesEveryPromptTokenOnce) {
  for (const int32_t pages : {128, 12}) {
    Simulation simulation(pages, {.max_num_batched_tokens = 100, .max_num_seqs = 8, .max_score_rows = 17});
    Random random(6);
    std::vector<Client> clients(12);
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i].prompt = random_text(random, 1 + static_cast<int64_t>(random.below(200)));
      if (i > 6) clients[i].prompt = clients[i - 6].prompt;
      clients[i].max_tokens = 1 + static_cast<int64_t>(random.below(60));
      clients[i].arrives = static_cast<int64_t>(random.below(30));
      clients[i].score = i % 2 == 0;
    }
    simulation.run(clients);
    expect_solo_answers(clients);
    for (const Client& client : clients) {
      if (!client.score) continue;
      EXPECT_EQ(client.scored, static_cast<int64_t>(client.prompt.size()) - 1);
    }
  }
}

// Random arrivals, lengths, shared prefixes, salts, cancels; pools from ample to barely enough for one request.
class RandomSchedule : public testing::TestWithParam<int> {};

TEST_P(RandomSchedule, EveryAnswerIsItsSoloAnswerAndEveryPageComesBack) {
  Random random(static_cast<uint64_t>(GetParam()) + 100);
  const int64_t longest = 40 + static_cast<int64_t>(random.below(300));
  const auto least = static_cast<int32_t>((longest + kPageTokens - 1) / kPageTokens);
  const int32_t pages = least + static_cast<int32_t>(random.below(3) * random.below(30));
  const SchedulerOptions options{.max_num_batched_tokens = 1 + static_cast<int64_t>(random.below(80)),
                                 .max_num_seqs = 1 + static_cast<int64_t>(random.below(32)),
                                 .max_score_rows = 1 + static_cast<int64_t>(random.below(40))};
  Simulation simulation(pages, options, GetParam() % 4 != 0);
  const auto shared = random_text(random, longest);
  std::vector<Client> clients(60);
  int64_t now = 0;
  for (Client& client : clients) {
    const auto length = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(longest - 1)));
    client.prompt = random_text(random, length);
    if (random.below(2) == 0) {
      const auto copied = static_cast<ptrdiff_t>(random.below(static_cast<uint64_t>(length) + 1));
      std::copy(shared.begin(), shared.begin() + copied, client.prompt.begin());
    }
    client.salt = random.below(4) == 0 ? "salt" : "";
    client.max_tokens = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(longest - length)));
    client.score = random.below(8) == 0;
    client.arrives = now;
    now += static_cast<int64_t>(random.below(2) * random.below(20));
    if (random.below(3) == 0) client.leaves = client.arrives + static_cast<int64_t>(random.below(60));
  }
  simulation.run(clients);
  expect_solo_answers(clients);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedule, testing::Range(0, 40));

}  // namespace
}  // namespace octavo
