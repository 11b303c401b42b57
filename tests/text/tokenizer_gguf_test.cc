// Tokenizers from GGUF metadata and from model folders.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "support/test_folder.h"
#include "text/tokenizer_spec.h"
#include "tokenizer_data.h"

namespace octavo {
namespace {

// A GGUF file with metadata only.
class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value) {
    entry(key, 8);
    put_text(value);
  }
  void integer(const std::string& key, uint32_t value) {
    entry(key, 4);
    put(value);
  }
  void flag(const std::string& key, bool value) {
    entry(key, 7);
    bytes_ += static_cast<char>(value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    entry(key, 9);
    put(uint32_t{8});
    put(static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) put_text(value);
  }
  void integers(const std::string& key, const std::vector<int32_t>& values) {
    entry(key, 9);
    put(uint32_t{5});
    put(static_cast<uint64_t>(values.size()));
    for (const int32_t value : values) put(value);
  }
  void numbers(const std::string& key, const std::vector<float>& values) {
    entry(key, 9);
    put(uint32_t{6});
    put(static_cast<uint64_t>(values.size()));
    for (const float value : values) put(value);
  }
  std::filesystem::path save() const {  // the file lives as long as the writer
    std::string file = "GGUF";
    const auto append = [&](auto value) { file.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    append(uint32_t{3});
    append(uint64_t{0});
    append(count_);
    file += bytes_;
    file.resize((file.size() + 31) / 32 * 32);
    const auto path = *folder_ / "tokenizer.gguf";
    EXPECT_TRUE(write_text_file(path, file));
    return path;
  }

 private:
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void put_text(const std::string& value) {
    put(static_cast<uint64_t>(value.size()));
    bytes_ += value;
  }
  void entry(const std::string& key, uint32_t type) {
    ++count_;
    put_text(key);
    put(type);
  }
  std::string bytes_;
  uint64_t count_ = 0;
  std::shared_ptr<TestFolder> folder_ = std::make_shared<TestFolder>();
};

struct GgufTokens {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
};

// What a converter makes of a tokenizer.json: holes become unused tokens.
GgufTokens tokens_of(const Json& json) {
  GgufTokens result;
  const auto put = [&](size_t id, const std::string& piece, int32_t type) {
    for (size_t i = result.tokens.size(); i <= id; ++i) {
      result.tokens.push_back("[PAD" + std::to_string(i) + "]");
      result.types.push_back(5);
    }
    result.tokens[id] = piece;
    result.types[id] = type;
  };
  for (const auto& [piece, id] : json["model"]["vocab"].items()) put(id.get<size_t>(), piece, 1);
  for (const Json& token : json["added_tokens"])
    put(token["id"].get<size_t>(), token["content"].get<std::string>(), token["special"].get<bool>() ? 3 : 4);
  for (const Json& merge : json["model"]["merges"])
    result.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                              : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  return result;
}

GgufWriter writer_for(const GgufTokens& tokens, const std::string& pre) {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.text("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) writer.text("tokenizer.ggml.pre", pre);
  writer.texts("tokenizer.ggml.tokens", tokens.tokens);
  writer.integers("tokenizer.ggml.token_type", tokens.types);
  writer.texts("tokenizer.ggml.merges", tokens.merges);
  return writer;
}

std::string error_of(const GgufWriter& writer) {
  const auto tokenizer = Tokenizer::open(writer.save());
  return tokenizer ? "no error" : tokenizer.error().message();
}

class GgufRule : public testing::TestWithParam<std::pair<const char*, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Names, GgufRule,
                         testing::Values(std::pair{"smollm", "smollm2"}, std::pair{"gpt-2", "gpt2"},
                                         std::pair{"llama-bpe", "llama3"}, std::pair{"qwen2", "qwen3"},
                                         std::pair{"deepseek-v3", "deepseek_v3"}, std::pair{"gpt-4o", "gpt_oss"}),
                         [](const auto& param) { return std::string(param.param.second); });

TEST_P(GgufRule, TokenizesAsTheTokenizerJsonDoes) {
  const auto [pre, name] = GetParam();
  const Json json = read_json(std::string(name) + ".json");
  GgufWriter writer = writer_for(tokens_of(json), pre);
  if (std::string_view(name) == "llama3") writer.integer("tokenizer.ggml.bos_token_id", json["added_tokens"][0]["id"]);
  const auto tokenizer = Tokenizer::open(writer.save());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  const Json golden = read_json(std::string(name) + ".golden.json");
  const auto texts = golden_texts();
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(tokenizer->encode(texts[i], true), golden["ids"][i].get<std::vector<TokenId>>()) << i << ": " << texts[i];
  const auto converted = Tokenizer::from_json(tokenizer->to_json(), "converted");
  ASSERT_TRUE(converted) << converted.error().message();
  for (const std::string& text : texts) EXPECT_EQ(converted->encode(text, true), tokenizer->encode(text, true));
}

TEST(GgufTokenizer, DefaultRuleSplitsPunctuationAndThreeDigits) {
  const auto writer =
      writer_for(tokens_of(tiny_tokenizer({{"1", "2"}, {"12", "3"}, {"3", "4"}, {"!", "a"}})), "default");
  const auto tokenizer = Tokenizer::open(writer.save());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("1234!a", false), (std::vector<TokenId>{257, '4', '!', 'a'}));
}

TEST(GgufTokenizer, AddsBosAndEosAsTheFileSays) {
  const auto tokens = tokens_of(tiny_tokenizer());
  for (const bool bos : {false, true}) {
    for (const bool eos : {false, true}) {
      GgufWriter writer = writer_for(tokens, "llama-bpe");
      writer.integer("tokenizer.ggml.bos_token_id", 'B');
      writer.integer("tokenizer.ggml.eos_token_id", 'E');
      writer.flag("tokenizer.ggml.add_bos_token", bos);
      writer.flag("tokenizer.ggml.add_eos_token", eos);
      const auto tokenizer = Tokenizer::open(writer.save());
      ASSERT_TRUE(tokenizer) << tokenizer.error().message();
      std::vector<TokenId> expected = {'x'};
      if (bos) expected.insert(expected.begin(), 'B');
      if (eos) expected.push_back('E');
      EXPECT_EQ(tokenizer->encode("x", true), expected);
      EXPECT_EQ(tokenizer->encode("x", false), std::vector<TokenId>{'x'});
      EXPECT_EQ(Tokenizer::from_json(tokenizer->to_json(), "again")->encode("x", true), expected);
    }
  }
}

// The "llama2" tokenizer as a converter writes it: scores in place of merges, byte pieces, a space in front.
GgufWriter sentence_pieces(const std::vector<float>* other_scores = nullptr) {
  const Json json = read_json("llama2.json");
  std::vector<std::string> tokens(json["model"]["vocab"].size());
  for (const auto& [piece, id] : json["model"]["vocab"].items()) tokens[id.get<size_t>()] = piece;
  std::vector<int32_t> types;
  std::vector<float> scores;
  for (size_t i = 0; i < tokens.size(); ++i) {
    types.push_back(i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
    scores.push_back(-static_cast<float>(i));
  }
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.text("tokenizer.ggml.model", "llama");
  writer.texts("tokenizer.ggml.tokens", tokens);
  writer.integers("tokenizer.ggml.token_type", types);
  writer.numbers("tokenizer.ggml.scores", other_scores == nullptr ? scores : *other_scores);
  writer.integer("tokenizer.ggml.bos_token_id", 1);
  writer.integer("tokenizer.ggml.unknown_token_id", 0);
  return writer;
}

TEST(GgufTokenizer, ScoresMergeAsTheMergesThatTheyCameFrom) {
  const auto tokenizer = Tokenizer::from_gguf(sentence_pieces().save());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  const Tokenizer expected = load_tokenizer("llama2");
  for (const std::string& text : golden_texts()) {
    const std::vector<TokenId> ids = tokenizer->encode(text, true);
    EXPECT_EQ(ids, expected.encode(text, true)) << text;
    EXPECT_EQ(tokenizer->decode(ids), expected.decode(ids));
  }
  const auto written = Tokenizer::from_json(tokenizer->to_json(), "written");
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(written->encode("Hello, wörld 👩", true), tokenizer->encode("Hello, wörld 👩", true));
}

TEST(GgufTokenizer, ScoresThatAreMissingOrNoNumbersAreErrors) {
  const std::vector<float> few = {1.0f};
  std::vector<float> broken(read_json("llama2.json")["model"]["vocab"].size(), 0.0f);
  broken[7] = NAN;
  for (const std::vector<float>* scores : {&few, static_cast<const std::vector<float>*>(&broken)}) {
    const auto tokenizer = Tokenizer::from_gguf(sentence_pieces(scores).save());
    ASSERT_FALSE(tokenizer);
    EXPECT_NE(tokenizer.error().message().find("scores"), std::string::npos) << tokenizer.error().message();
  }
}

TEST(GgufTokenizer, ErrorsNameKeyAndRemedy) {
  const auto tokens = tokens_of(tiny_tokenizer({{"a", "b"}}));
  const std::string unknown = error_of(writer_for(tokens, "no-such-rule"));
  EXPECT_NE(unknown.find("no-such-rule"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("smollm"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("deepseek-v3"), std::string::npos) << unknown;
  EXPECT_NE(error_of(writer_for(tokens, "")).find("tokenizer.ggml.pre"), std::string::npos);

  GgufWriter spm;
  spm.text("tokenizer.ggml.model", "bert");
  EXPECT_NE(error_of(spm).find("gpt2 (byte-level BPE)"), std::string::npos) << error_of(spm);
  EXPECT_NE(error_of(GgufWriter()).find("no tokenizer.ggml.model"), std::string::npos) << error_of(GgufWriter());

  auto short_types = tokens;
  short_types.types.pop_back();
  EXPECT_NE(error_of(writer_for(short_types, "gpt-2")).find("different length"), std::string::npos);
  auto twice = tokens;
  twice.tokens[10] = twice.tokens[11];
  EXPECT_NE(error_of(writer_for(twice, "gpt-2")).find("twice"), std::string::npos);
  auto bad_merge = tokens;
  bad_merge.merges[0] = "a zz";
  EXPECT_NE(error_of(writer_for(bad_merge, "gpt-2")).find("\"zz\""), std::string::npos);
  bad_merge.merges[0] = "ab";
  EXPECT_NE(error_of(writer_for(bad_merge, "gpt-2")).find("malformed"), std::string::npos);
  GgufWriter bos = writer_for(tokens, "gpt-2");
  bos.flag("tokenizer.ggml.add_bos_token", true);
  bos.integer("tokenizer.ggml.bos_token_id", 100000);
  EXPECT_NE(error_of(bos).find("100000"), std::string::npos) << error_of(bos);
}

class ModelFolder : public testing::Test {
 protected:
  void write(const std::string& name, const Json& json) { ASSERT_TRUE(write_text_file(folder_ / name, json.dump())); }

  TestFolder folder_;
};

TEST_F(ModelFolder, WithoutATokenizerIsAnError) {
  const auto tokenizer = Tokenizer::open(folder_.path());
  ASSERT_FALSE(tokenizer);
  EXPECT_NE(tokenizer.error().message().find("tokenizer.json"), std::string::npos);
  EXPECT_NE(tokenizer.error().message().find(folder_.path().string()), std::string::npos);
}

TEST_F(ModelFolder, TokenizerConfigAddsTokensAndBos) {
  Json json = tiny_tokenizer();
  json["added_tokens"] = {added_token(256, "<s>", true)};
  write("tokenizer.json", json);
  write("tokenizer_config.json",
        {{"add_bos_token", true},
         {"bos_token", {{"content", "<s>"}}},
         {"added_tokens_decoder", {{"256", added_token(256, "<s>", true)}, {"257", added_token(257, "<t>", true)}}}});
  const auto tokenizer = Tokenizer::open(folder_.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("a<t>", true), (std::vector<TokenId>{256, 'a', 257}));
  EXPECT_EQ(tokenizer->encode("a<t>", false), (std::vector<TokenId>{'a', 257}));
  EXPECT_TRUE(tokenizer->is_special(257));
}

TEST_F(ModelFolder, APostProcessorThatAddsBosIsNotDoubledByTheConfig) {
  Json json = tiny_tokenizer();
  json["added_tokens"] = {added_token(256, "<s>", true)};
  json["post_processor"] = template_post_processor({{.id = 256, .content = "<s>"}}, {});
  write("tokenizer.json", json);
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", "<s>"}});
  const auto tokenizer = Tokenizer::open(folder_.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("a", true), (std::vector<TokenId>{256, 'a'}));
}

TEST_F(ModelFolder, TokenizerConfigErrors) {
  write("tokenizer.json", tiny_tokenizer());
  const std::pair<Json, const char*> cases[] = {
      {{{"add_bos_token", true}}, "add_bos_token is true"},
      {{{"add_bos_token", true}, {"bos_token", "<nope>"}}, "<nope>"},
      {{{"add_bos_token", 1}}, "true or false"},
      {{{"added_tokens_decoder", {{"x", {{"content", "y"}}}}}}, "not an id"},
      {{{"added_tokens_decoder", {{"5", {{"content", "<y>"}}}}}}, "same id"},
      {Json::array(), "not an object"},
  };
  for (const auto& [config, expected] : cases) {
    write("tokenizer_config.json", config);
    const auto tokenizer = Tokenizer::open(folder_.path());
    ASSERT_FALSE(tokenizer) << config;
    EXPECT_NE(tokenizer.error().message().find(expected), std::string::npos) << tokenizer.error().message();
    EXPECT_NE(tokenizer.error().message().find("tokenizer_config.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace octavo
