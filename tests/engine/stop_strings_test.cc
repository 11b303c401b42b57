#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace octavo {
namespace {

// By the definition: the whole text is searched.
std::string cut_at_earliest(const std::string& text, const std::vector<std::string>& stops) {
  size_t earliest = text.size();
  for (const std::string& stop : stops) earliest = std::min(earliest, text.find(stop));
  return text.substr(0, earliest);
}

TEST(StopStrings, NothingToStopAtPassesEverything) {
  StopStrings stops({});
  EXPECT_EQ(stops.push("abc"), "abc");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, HoldsBackNoMoreThanNeeded) {
  StopStrings stops({"stop"});
  EXPECT_EQ(stops.push("it s"), "it ");
  EXPECT_EQ(stops.push("to"), "");
  EXPECT_EQ(stops.push("sto"), "sto");
  EXPECT_EQ(stops.push("p!"), "");
  EXPECT_EQ(stops.match(), "stop");
  EXPECT_EQ(stops.push("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, OfThoseThatStartTogetherTheShortestCounts) {
  StopStrings stops({"abc", "ab"});
  EXPECT_EQ(stops.push("xabc"), "x");
  EXPECT_EQ(stops.match(), "ab");
}

TEST(StopStrings, BordersOfPiecesDoNotMatter) {
  Random random(1);
  const auto word = [&](uint64_t longest) {
    std::string text;
    for (uint64_t n = 1 + random.below(longest); n > 0; --n) text += static_cast<char>('a' + random.below(3));
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> list;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) list.push_back(word(6));
    const std::string text = word(20), expected = cut_at_earliest(text, list);
    StopStrings stops(list);
    std::string got;
    for (size_t at = 0; at < text.size() && !stops.match();) {
      const size_t count = 1 + random.below(4);
      got += stops.push(std::string_view(text).substr(at, count));
      at += count;
      ASSERT_TRUE(expected.starts_with(got)) << text << " gave " << got;  // nothing is ever taken back
    }
    got += stops.finish();
    ASSERT_EQ(got, expected) << text;
    ASSERT_EQ(stops.match().has_value(), expected.size() < text.size());
  }
}

}  // namespace
}  // namespace octavo
