// The tokenizer by itself: files that lie, long texts, streams, and what a caller may ask for.
#include <ctime>

#include "tokenizer_data.h"

namespace octavo {
namespace {

Tokenizer make(const Json& json) {
  auto tokenizer = Tokenizer::from_json(json.dump(), "test");
  if (!tokenizer) ADD_FAILURE() << tokenizer.error().message();
  return std::move(tokenizer).value();
}

std::string error_of_text(const std::string& text) {
  const auto tokenizer = Tokenizer::from_json(text, "test.json");
  return tokenizer ? "no error" : tokenizer.error().message();
}

std::string error_of(const Json& json) {
  return error_of_text(json.dump());
}

std::string stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                   std::vector<std::string>* deltas = nullptr) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : ids) {
    text += deltas == nullptr ? decoder.push(id) : deltas->emplace_back(decoder.push(id));
  }
  return text + (deltas == nullptr ? decoder.finish() : deltas->emplace_back(decoder.finish()));
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer = make(tiny_tokenizer({{"b", "c"}, {"a", "b"}, {"a", "a"}}));
  EXPECT_EQ(tokenizer.encode("abc", false), (std::vector<TokenId>{'a', 256}));
  EXPECT_EQ(tokenizer.encode("aaa", false), (std::vector<TokenId>{258, 'a'}));
  EXPECT_EQ(tokenizer.encode("aab", false), (std::vector<TokenId>{'a', 257}));
}

TEST(Tokenizer, MergesLongPiecesAsItMergesShortOnes) {
  const Tokenizer tokenizer = make(tiny_tokenizer({{"a", "b"}, {"ab", "ab"}, {"c", "a"}, {"abab", "ab"}, {"a", "a"}}));
  // "x" takes part in no merge: a long piece is the sum of the short ones between.
  std::string text;
  std::vector<TokenId> expected;
  uint32_t state = 1;
  for (int i = 0; i < 300; ++i) {
    std::string part;
    for (int k = 0; k < 30; ++k) part += static_cast<char>('a' + ((state = state * 1664525 + 1013904223) >> 16) % 3);
    const auto ids = tokenizer.encode(part, false);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back('x');
    text += part + "x";
  }
  EXPECT_EQ(tokenizer.encode(text, false), expected);
}

TEST(Tokenizer, LongRunsTakeNoQuadraticTime) {
  const std::clock_t start = std::clock();
  for (const char* name : {"smollm2", "qwen3", "deepseek_v3", "gpt_oss"}) {
    const Tokenizer tokenizer = load_tokenizer(name);
    for (const std::string unit :
         {"a", " ", "\n", "1", "A", "!", "\u4E2D", "\u0301\u0316", " a", "\r\n", "ab", "<", "\xFF"}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      const auto ids = tokenizer.encode(text + "x", false);
      if (unit == "\xFF" || (std::string_view(name) == "qwen3" && unit == "\u0301\u0316")) continue;
      EXPECT_EQ(tokenizer.decode(ids), text + "x") << name << " " << unit;
    }
  }
  EXPECT_LT(std::clock() - start, 60 * CLOCKS_PER_SEC);
}

TEST(Tokenizer, ReplacesInvalidUtf8AsThePythonDecoderDoes) {
  const Tokenizer tokenizer = make(tiny_tokenizer());
  const auto text = [&](std::string_view bytes) { return tokenizer.decode(tokenizer.encode(bytes, false)); };
  EXPECT_EQ(text("A\xFF\x42"), "A\uFFFDB");
  EXPECT_EQ(text("\xF0\x9F\x8C"), "\uFFFD");
  EXPECT_EQ(text("\xE4\xB8'"), "\uFFFD'");
  EXPECT_EQ(text("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(text("\xC0\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(text(std::string_view("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Tokenizer, IdsOutOfRangeHaveNoText) {
  const Tokenizer tokenizer = load_tokenizer("gpt_oss");
  for (const TokenId id : {-1, INT32_MIN, INT32_MAX, static_cast<TokenId>(tokenizer.vocab_size())}) {
    EXPECT_EQ(tokenizer.token_bytes(id), "") << id;
    EXPECT_EQ(tokenizer.token_piece(id), "") << id;
    EXPECT_FALSE(tokenizer.is_special(id)) << id;
    EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{id}), "") << id;
  }
  EXPECT_EQ(tokenizer.token_id("no such piece"), std::nullopt);
}

TEST(Tokenizer, BosIsTheCallersChoiceAndNeverDoubledByTheTokenizer) {
  const Tokenizer tokenizer = load_tokenizer("llama3");
  const TokenId bos = tokenizer.token_id("<|startoftext|>").value();
  const auto count = [&](const std::vector<TokenId>& ids) { return std::count(ids.begin(), ids.end(), bos); };
  EXPECT_EQ(count(tokenizer.encode("hi", true)), 1);
  EXPECT_EQ(tokenizer.encode("hi", true).front(), bos);
  EXPECT_EQ(count(tokenizer.encode("hi", false)), 0);
  EXPECT_EQ(count(tokenizer.encode("<|startoftext|>hi", false)), 1);  // a template that writes it
  EXPECT_EQ(count(tokenizer.encode("<|startoftext|>hi", true, false)), 1);
  EXPECT_EQ(tokenizer.encode("", true), std::vector<TokenId>{bos});
}

TEST(Tokenizer, AddedTokensThatAreNotSpecialAreAlwaysFound) {
  Json json = tiny_tokenizer();
  json["added_tokens"] = {added_token(256, "<s>", true), added_token(257, "<tool>", false)};
  const Tokenizer tokenizer = make(json);
  EXPECT_EQ(tokenizer.encode("<s><tool>", false), (std::vector<TokenId>{256, 257}));
  EXPECT_EQ(tokenizer.encode("<s><tool>", false, false), (std::vector<TokenId>{'<', 's', '>', 257}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{256, 257, 'a'}), "<tool>a");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{256, 257, 'a'}, false), "<s><tool>a");
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_FALSE(tokenizer.is_special(257));
  EXPECT_EQ(tokenizer.vocab_size(), 258u);
}

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const Tokenizer tokenizer = make(tiny_tokenizer());
  std::vector<std::string> deltas;
  EXPECT_EQ(stream(tokenizer, {0xF0, 0x9F, 0x8C, 0xB6}, &deltas), "\xF0\x9F\x8C\xB6");
  EXPECT_EQ(deltas, (std::vector<std::string>{"", "", "", "\xF0\x9F\x8C\xB6", ""}));
  deltas.clear();
  EXPECT_EQ(stream(tokenizer, {0xC3}, &deltas), "\uFFFD");
  EXPECT_EQ(deltas, (std::vector<std::string>{"", "\uFFFD"}));
  deltas.clear();
  EXPECT_EQ(stream(tokenizer, {0xFF, 'A'}, &deltas), "\uFFFDA");
  EXPECT_EQ(deltas, (std::vector<std::string>{"\uFFFD", "A", ""}));
  deltas.clear();
  EXPECT_EQ(stream(tokenizer, {0xE4, 0xB8, 0x27}, &deltas), "\uFFFD'");
  EXPECT_EQ(deltas, (std::vector<std::string>{"", "", "\uFFFD'", ""}));
  EXPECT_EQ(stream(tokenizer, {0xF0, 0x9F, 0x8C, 0xF0, 0x9F}), "\uFFFD\uFFFD");
}

TEST(StreamDecoder, PutsCharactersTogetherAcrossTokensOfSeveralBytes) {
  Json json = tiny_tokenizer({{"\u00F0", "\u0141"}, {"\u00F0\u0141", "\u0133"}, {"\u00E2", "\u0122"}});
  const Tokenizer tokenizer = make(json);  // tokens F0 9F, F0 9F 91, E2 80
  ASSERT_EQ(tokenizer.token_bytes(257), "\xF0\x9F\x91");
  ASSERT_EQ(tokenizer.token_bytes(258), "\xE2\x80");
  const std::string text = "\U0001F469\u200D\U0001F4BB";
  std::vector<std::string> deltas;
  EXPECT_EQ(stream(tokenizer, {257, 0xA9, 258, 0x8D, 256, 0x92, 0xBB}, &deltas), text);
  EXPECT_EQ(deltas, (std::vector<std::string>{"", "\U0001F469", "", "\u200D", "", "", "\U0001F4BB", ""}));
}

TEST(StreamDecoder, ASpecialTokenBetweenTheBytesOfACharacterChangesNothing) {
  Json json = tiny_tokenizer();
  json["added_tokens"] = {added_token(256, "<s>", true)};
  const Tokenizer tokenizer = make(json);
  const std::vector<TokenId> ids = {0xC3, 256, 0xA9};
  EXPECT_EQ(stream(tokenizer, ids), "\u00E9");
  EXPECT_EQ(stream(tokenizer, ids), tokenizer.decode(ids));
  StreamDecoder all(tokenizer, false);
  std::string text;
  for (const TokenId id : ids) text += all.push(id);
  EXPECT_EQ(text + all.finish(), "\uFFFD<s>\uFFFD");
}

TEST(TokenizerErrors, NameThePartAndWhatIsSupported) {
  struct Case {
    const char* path;
    Json value;
    std::vector<std::string> expected;
  };
  const Case cases[] = {
      {"/model/type", "Unigram", {"Unigram", "BPE"}},
      {"/model/type", "WordPiece", {"WordPiece", "BPE"}},
      {"/model/byte_fallback", true, {"pre_tokenizer", "ByteLevel", "Metaspace or null"}},
      {"/model/dropout", 0.1, {"dropout"}},
      {"/model/end_of_word_suffix", "</w>", {"end_of_word_suffix"}},
      {"/model/continuing_subword_prefix", "##", {"continuing_subword_prefix"}},
      {"/model/ignore_merges", "yes", {"ignore_merges", "true or false"}},
      {"/model/unk_token", "<unk>", {"unk_token", "<unk>"}},
      {"/model/merges", Json::array({Json::array({"a", "zz"})}), {"merge 0", "\"zz\""}},
      {"/model/merges", Json::array({Json::array({"a", "b"})}), {"merge 0", "\"ab\"", "vocabulary"}},
      {"/model/merges", Json::array({Json::array({"a", "b", "c"})}), {"merge 0", "array of 3"}},
      {"/model/merges", Json::array({"a b c"}), {"merge", "a b c"}},
      {"/model/merges", Json::array({7}), {"merge", "another type"}},
      {"/model/merges", "a b", {"merges"}},
      {"/model/vocab", {{"a", 1}, {"b", 1}}, {"same id", "id 1", "\"a\"", "\"b\""}},
      {"/model/vocab", {{"a", -1}}, {"out of range", "-1"}},
      {"/model/vocab", {{"a", 4000000000}}, {"out of range", "4000000000"}},
      {"/model/vocab", {{"a", 18446744073709551615u}}, {"out of range"}},
      {"/model/vocab", {{"a", 1.5}}, {"not a number", "\"a\""}},
      {"/model/vocab", {{"a", {{"b", 1}}}}, {"not a number", "\"a\""}},
      {"/model/vocab", Json::array({"a"}), {"vocab"}},
      {"/model", nullptr, {"no \"model\""}},
      {"/normalizer", {{"type", "Lowercase"}}, {"normalizer", "Lowercase", "NFC"}},
      {"/normalizer", {{"kind", "NFC"}}, {"normalizer", "type"}},
      {"/pre_tokenizer", nullptr, {"pre_tokenizer", "ByteLevel"}},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, {"pre_tokenizer", "Metaspace", "ByteLevel"}},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array()}}, {"empty Sequence"}},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", 3}}, {"pretokenizers", "an array"}},
      {"/decoder", nullptr, {"decoder", "null", "ByteLevel"}},
      {"/decoder", {{"type", "WordPiece"}}, {"decoder", "WordPiece"}},
      {"/post_processor", {{"type", "BertProcessing"}}, {"post_processor", "BertProcessing", "TemplateProcessing"}},
      {"/added_tokens", {{{"content", "x"}}}, {"added token", "id", "\"x\""}},
      {"/added_tokens", {{{"id", 300}}}, {"content"}},
      {"/added_tokens", {{{"id", 97}, {"content", "x"}}}, {"disagree", "97 and 120"}},
      {"/added_tokens", {{{"id", 97}, {"content", "<x>"}}}, {"same id", "id 97"}},
      {"/added_tokens", {{{"id", -5}, {"content", "<x>"}}}, {"out of range"}},
      {"/added_tokens", {{{"id", 2000000000}, {"content", "<x>"}}}, {"out of range"}},
      {"/added_tokens",
       {{{"id", 300}, {"content", "<x>"}}, {{"id", 301}, {"content", "<x>"}}},
       {"same content", "300 and 301"}},
      {"/added_tokens", {{{"id", 300}, {"content", std::string(5000, 'x')}}}, {"too long"}},
  };
  for (const Case& c : cases) {
    Json json = tiny_tokenizer();
    json[Json::json_pointer(c.path)] = c.value;
    const std::string message = error_of(json);
    for (const std::string& part : c.expected)
      EXPECT_NE(message.find(part), std::string::npos) << c.path << "\n" << message;
    EXPECT_NE(message.find("test.json"), std::string::npos) << message;
  }
}

TEST(TokenizerErrors, RefuseWhatARegularExpressionMeansDifferently) {
  for (const char* pattern : {"[a-z&&[aeiou]]", "[a[bc]]", "\\p{N}{1,3}+", "(", "[\\S]", "\\", "\\u12", "\\p{Nope}"}) {
    Json json = tiny_tokenizer();
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}}, {{"type", "ByteLevel"}}}}};
    const std::string message = error_of(json);
    EXPECT_NE(message.find("regular expression"), std::string::npos) << pattern << "\n" << message;
  }
}

TEST(TokenizerErrors, PostProcessorTokensMustExist) {
  Json json = tiny_tokenizer();
  const Json item = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", {item, text}}, {"special_tokens", Json::object()}};
  EXPECT_NE(error_of(json).find("\"<s>\""), std::string::npos);
  json["post_processor"]["special_tokens"]["<s>"] = {{"ids", {999}}};
  EXPECT_NE(error_of(json).find("id 999"), std::string::npos);
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = {65};
  EXPECT_EQ(make(json).encode("b", true), (std::vector<TokenId>{'A', 'b'}));
  json["post_processor"]["single"] = {text, text};
  EXPECT_NE(error_of(json).find("repeats the text"), std::string::npos);
}

TEST(TokenizerErrors, BrokenJson) {
  const std::string good = tiny_tokenizer().dump();
  for (size_t size = 0; size < good.size(); size += 97)
    EXPECT_NE(error_of_text(good.substr(0, size)), "no error") << size;
  EXPECT_NE(error_of_text("[]").find("no \"model\""), std::string::npos);
  EXPECT_NE(error_of_text(std::string(100000, '[')).find("nested too deeply"), std::string::npos);
  EXPECT_NE(error_of_text(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}})").find("twice"), std::string::npos);
  EXPECT_NE(error_of_text(R"({"model": {"vocab": {}, "vocab": {}, "merges": []}})").find("same key twice"),
            std::string::npos);
  EXPECT_NE(error_of_text(R"({"decoder": 1, "decoder": 2})").find("same key twice"), std::string::npos);
  EXPECT_NE(error_of_text("{\"model\": \"\xFF\"}").find("not valid JSON"), std::string::npos);
}

TEST(Tokenizer, MergesMayComeBeforeTheVocabularyAndInBothSpellings) {
  Json json = tiny_tokenizer({{"a", "b"}, {"ab", "c"}});
  const auto expected = make(json).encode("abcab", false);
  Json swapped = json;
  swapped["model"] = {{"merges", json["model"]["merges"]}, {"vocab", json["model"]["vocab"]}};
  EXPECT_EQ(make(swapped).encode("abcab", false), expected);
  json["model"]["merges"] = {"#version: 0.2", "a b", "ab c"};
  EXPECT_EQ(make(json).encode("abcab", false), expected);
  EXPECT_EQ(expected, (std::vector<TokenId>{257, 256}));
}

}  // namespace
}  // namespace octavo
