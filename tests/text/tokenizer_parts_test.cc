// The parts below the tokenizer: UTF-8, composition, patterns, the byte alphabet, the vocabulary's tables.
#include <ctime>

#include "text/byte_level.h"
#include "text/split_pattern.h"
#include "text/utf8.h"
#include "tokenizer_data.h"

namespace octavo {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const auto compiled = SplitPattern::regex(pattern);
  if (!compiled) return {compiled.error().message()};
  std::vector<TextRange> ranges;
  compiled->find_all(text, ranges);
  std::vector<std::string> result;
  for (const TextRange range : ranges) result.push_back(text.substr(range.begin, range.end - range.begin));
  return result;
}

TEST(Utf8, EveryCodePointThereAndBack) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_TRUE(step.valid) << c;
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.size, static_cast<int>(text.size()));
    int size = 0;
    ASSERT_EQ(code_point_before("a" + text, text.size() + 1, &size), c);
    // Every proper prefix may still become valid.
    for (size_t i = 1; i < text.size(); ++i)
      ASSERT_TRUE(utf8_step(std::string_view(text).substr(0, i), 0).truncated) << c;
  }
}

TEST(Utf8, StandInsKeepTheLengthAndTheKindOfCharacter) {
  std::string out;
  EXPECT_FALSE(with_older_stand_ins("plain \u00E9 \u4E2D \U0001F600", out));
  const std::string text = "a\U00031350\U0001E4F0\u0897\U0001FAE8";
  ASSERT_TRUE(with_older_stand_ins(text, out));
  EXPECT_EQ(out.size(), text.size());
  EXPECT_EQ(matches("\\p{Lo}|\\p{N}|\\p{M}|\\p{S}", out).size(), 4u);
}

TEST(Utf8, NumbersSpacesAndWords) {
  for (const uint32_t c : {0x30u, 0xB2u, 0x663u, 0x2167u, 0x1D7D9u, 0x11DE0u}) EXPECT_TRUE(is_numeric(c)) << c;
  for (const uint32_t c : {0x61u, 0x4E00u, 0x2Fu}) EXPECT_FALSE(is_numeric(c)) << c;
  for (const uint32_t c : {0x20u, 0x85u, 0xA0u, 0x3000u}) EXPECT_TRUE(is_white_space(c)) << c;
  for (const uint32_t c : {0x180Eu, 0x200Bu, 0xFEFFu}) EXPECT_FALSE(is_white_space(c)) << c;
  for (const uint32_t c : {0x61u, 0x5Fu, 0x301u, 0x663u, 0x2167u, 0x24D0u, 0x200Du}) EXPECT_TRUE(is_word(c)) << c;
  for (const uint32_t c : {0xB2u, 0x2Du, 0x20u}) EXPECT_FALSE(is_word(c)) << c;
}

TEST(Composition, CanonicalForms) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(to_nfc("e\u0316\u0301"), "\u00E9\u0316");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");                        // excluded from composition
  EXPECT_EQ(to_nfc("\U00011935\U00011930"), "\U00011935\U00011930");  // younger than the tables
  EXPECT_EQ(to_nfc("a\u0EBA\u0334"), "a\u0EBA\u0334");
}

TEST(Composition, LongRunsOfMarksTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 300'000; ++i) text += "\u0301\u0316";
  const std::clock_t start = std::clock();
  const std::string composed = to_nfc(text);
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
  EXPECT_EQ(composed.size(), text.size() - 1);  // a and one acute make one character of two bytes
}

TEST(SplitPatterns, MeanWhatTheyMeanInOniguruma) {
  EXPECT_EQ(matches("\\s+", "a \u00A0\u3000b\u180Ec\u0085"), (std::vector<std::string>{" \u00A0\u3000", "\u0085"}));
  EXPECT_EQ(matches("[^\\s]+", "a\u180Eb c"), (std::vector<std::string>{"a\u180Eb", "c"}));
  EXPECT_EQ(matches("\\w+", "a\u0301b-\u00B2_"), (std::vector<std::string>{"a\u0301b", "_"}));
  EXPECT_EQ(matches("\\h+", "xyzAF09"), std::vector<std::string>{"AF09"});
  EXPECT_EQ(matches("\\u4e2d", "a\u4E2D"), std::vector<std::string>{"\u4E2D"});
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), std::vector<std::string>{"a\nb"});
  EXPECT_EQ(matches("a.b", "a\nb"), std::vector<std::string>{});
  EXPECT_EQ(matches("^b$", "a\nb\nc"), std::vector<std::string>{"b"});
  EXPECT_EQ(matches("(?i:'s)", "'S '\u017F"), (std::vector<std::string>{"'S", "'\u017F"}));
  EXPECT_EQ(matches("[[:upper:]]+", "aBCd"), std::vector<std::string>{"BC"});
  EXPECT_EQ(matches("a*", "baac"), (std::vector<std::string>{"", "aa", ""}));
}

TEST(SplitPatterns, ARunawayPatternEnds) {
  const std::clock_t start = std::clock();
  EXPECT_EQ(matches("(a+)+$|(?:(?:a|b|ab)*)*c", std::string(5000, 'a') + "b"), std::vector<std::string>{});
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

TEST(SplitPatterns, DeepNestingNeedsNoDeepStack) {
  const std::string text(200'000, 'a');
  EXPECT_EQ(matches("(?:(a)|b)+", text), std::vector<std::string>{text});
}

TEST(ByteAlphabet, EveryByteThereAndBack) {
  std::string all, text, back;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  append_byte_level(all, text);
  EXPECT_TRUE(is_valid_utf8(text));
  append_piece_bytes(text, back);
  EXPECT_EQ(back, all);
  back.clear();
  append_piece_bytes("\u0120the", back);
  EXPECT_EQ(back, " the");
  back.clear();
  append_piece_bytes("\u0120\u4E2D", back);  // not of the alphabet: itself
  EXPECT_EQ(back, "\u0120\u4E2D");
}

}  // namespace
}  // namespace octavo
