// Ids and decoded texts equal those of the `tokenizers` package, for every splitting rule.
#include <atomic>
#include <thread>

#include "text/byte_level.h"
#include "tokenizer_data.h"

namespace octavo {
namespace {

class TokenizerGolden : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Rules, TokenizerGolden,
                         testing::Values("smollm2", "gpt2", "llama3", "qwen3", "deepseek_v3", "gpt_oss", "added",
                                         "llama2", "mistral", "gemma", "metaspace"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(TokenizerGolden, EncodesAsTheReferenceDoes) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  const Json golden = read_json(std::string(GetParam()) + ".golden.json");
  const auto texts = golden_texts();
  ASSERT_EQ(golden["ids"].size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(tokenizer.encode(texts[i], true), golden["ids"][i].get<std::vector<TokenId>>()) << i << ": " << texts[i];
}

TEST_P(TokenizerGolden, SpellsSpecialTokensOutWhenTheyAreNotParsed) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  const Json golden = read_json(std::string(GetParam()) + ".golden.json");
  const auto texts = golden_texts();
  ASSERT_GE(golden["plain"].size(), 100u);
  for (size_t i = 0; i < golden["plain"].size(); ++i)
    EXPECT_EQ(tokenizer.encode(texts[i], false, false), golden["plain"][i].get<std::vector<TokenId>>())
        << i << ": " << texts[i];
}

TEST_P(TokenizerGolden, DecodesAsTheReferenceDoes) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  const Json golden = read_json(std::string(GetParam()) + ".golden.json");
  for (const Json& row : golden["decode"]) {
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.decode(ids, false), row["all"].get<std::string>()) << row["ids"];
    EXPECT_EQ(tokenizer.decode(ids), row["text"].get<std::string>()) << row["ids"];
  }
}

TEST_P(TokenizerGolden, StreamsWhatItDecodes) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  const Json golden = read_json(std::string(GetParam()) + ".golden.json");
  for (const bool skip_special : {true, false}) {
    for (const Json& row : golden["decode"]) {
      const auto ids = row["ids"].get<std::vector<TokenId>>();
      StreamDecoder stream(tokenizer, skip_special);
      std::string text;
      for (const TokenId id : ids) text += stream.push(id);
      text += stream.finish();
      EXPECT_EQ(text, tokenizer.decode(ids, skip_special)) << row["ids"];
    }
  }
}

TEST_P(TokenizerGolden, WritesAnEqualTokenizer) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  const std::string written = tokenizer.to_json();
  auto again = Tokenizer::from_json(written, "written");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->to_json(), written);
  EXPECT_EQ(again->vocab_size(), tokenizer.vocab_size());
  for (const std::string& text : golden_texts()) {
    EXPECT_EQ(again->encode(text, true), tokenizer.encode(text, true));
    EXPECT_EQ(again->encode(text, false, false), tokenizer.encode(text, false, false));
  }
}

TEST_P(TokenizerGolden, NamesEveryPiece) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  size_t named = 0;
  for (size_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string piece = tokenizer.token_piece(id);
    if (piece.empty()) continue;
    ++named;
    EXPECT_EQ(tokenizer.token_id(piece), id) << piece;
    std::string bytes;
    append_piece_bytes(piece, bytes);
    const bool sentence_piece = tokenizer.token_id("<0x0A>").has_value();
    if (!sentence_piece) {
      EXPECT_EQ(tokenizer.token_bytes(id), bytes);
    }
  }
  EXPECT_GT(named, 1500u);
}

TEST_P(TokenizerGolden, AnswersManyThreadsAlike) {
  const Tokenizer tokenizer = load_tokenizer(GetParam());
  const auto texts = golden_texts();
  std::vector<std::vector<TokenId>> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text, true));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (size_t i = 0; i < texts.size(); ++i) wrong += tokenizer.encode(texts[i], true) != expected[i];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TokenizerSplits, EveryBehaviorAndTheOtherPreTokenizers) {
  Json file = read_json("smollm2.json");
  const auto texts = golden_texts();
  const Json splits = read_json("splits.json");
  ASSERT_EQ(splits.size(), 18u);
  for (const Json& variant : splits) {
    file["pre_tokenizer"] = variant["pre_tokenizer"];
    const auto tokenizer = Tokenizer::from_json(file.dump(), "variant");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message();
    for (size_t i = 0; i < variant["ids"].size(); ++i)
      EXPECT_EQ(tokenizer->encode(texts[i], false), variant["ids"][i].get<std::vector<TokenId>>())
          << variant["pre_tokenizer"] << "\n"
          << texts[i];
  }
}

}  // namespace
}  // namespace octavo
