// Calibration text: what is read, in what proportions, and what is refused.
#include "quantize/calibration_data.h"

#include <algorithm>
#include <set>

#include "model_folder.h"
#include "support/byte_tokenizer_json.h"

namespace octavo {
namespace {

class CalibrationData : public testing::Test {
 protected:
  CalibrationData() {
    std::string config(kOddModel);
    config.replace(config.find("\"vocab_size\": 96"), 16, "\"vocab_size\": 320");
    config_ = parse_model_config(config, "config.json").value();
    write("tokenizer.json", byte_tokenizer_json({}, 320, {1, 2}));
    write(
        "tokenizer_config.json",
        R"({"chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}", "eos_token": null})");
  }
  std::filesystem::path write(const std::string& name, const std::string& text) {
    EXPECT_TRUE(write_text_file(folder_ / name, text).has_value());
    return folder_ / name;
  }
  Result<CalibrationSet> read(const std::vector<CalibrationSource>& sources, int64_t samples, int64_t length,
                              uint64_t seed = 0) {
    return read_calibration_set(folder_.path(), config_, {sources, samples, length, seed});
  }
  static std::string text_of(const CalibrationSet& set) {
    std::string text;
    for (const auto& sample : set.samples)
      for (const TokenId token : sample) text += static_cast<char>(token);
    return text;
  }

  TestFolder folder_;
  ModelConfig config_;
};

TEST_F(CalibrationData, DocumentsAreDrawnBySeedAndCutIntoSamples) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"<document " + std::to_string(100 + i) + ">\"}\n";
  const auto path = write("a.jsonl", lines);
  const auto set = read({{path, 1}}, 10, 50, 7), again = read({{path, 1}}, 10, 50, 7),
             other = read({{path, 1}}, 10, 50, 8);
  ASSERT_TRUE(set.has_value()) << set.error().message();
  ASSERT_EQ(set->samples.size(), 10u);
  for (const auto& sample : set->samples) EXPECT_EQ(sample.size(), 50u);
  EXPECT_EQ(set->samples, again->samples);
  EXPECT_NE(set->samples, other->samples);
  // Whole documents in a row, each once.
  const std::string text = text_of(*set);
  std::set<std::string> seen;
  for (size_t at = 0; at + 14 <= text.size(); at += 14) {
    EXPECT_EQ(text.substr(at, 10), "<document ");
    EXPECT_TRUE(seen.insert(text.substr(at, 14)).second);
  }
}

TEST_F(CalibrationData, MessagesGoThroughTheChatTemplate) {
  const std::string long_text(150, 'x');
  const auto path =
      write("chat.jsonl", R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ")" +
                              long_text + "\"}]}\n");
  const auto set = read({{path, 1}}, 4, 64);
  ASSERT_TRUE(set.has_value()) << set.error().message();
  EXPECT_EQ(text_of(*set), "[user]hi;[assistant]" + long_text + ";");
}

TEST_F(CalibrationData, FilesAreMixedByWeight) {
  const auto a = write("a.txt", std::string(100'000, 'a')), b = write("b.txt", std::string(100'000, 'b')),
             c = write("c.txt", std::string(640, 'c'));
  const auto set = read({{a, 0.7}, {b, 0.3}}, 100, 64);
  ASSERT_TRUE(set.has_value());
  EXPECT_EQ(set->files[0].tokens_used, 70 * 64);
  EXPECT_EQ(set->files[1].tokens_used, 30 * 64);
  // A file that runs dry is said, and the others go on.
  const auto dry = read({{a, 1}, {c, 1}}, 100, 64);
  ASSERT_TRUE(dry.has_value());
  EXPECT_EQ(dry->files[1].tokens_used, 640);
  EXPECT_EQ(dry->files[0].tokens_used, 90 * 64);
  const auto all = read({{c, 1}}, 100, 64);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->tokens(), 640);
  EXPECT_EQ(all->notes.size(), 3u);  // all of it used, less than asked for, little text
}

// Empty lines may hold blanks, and lines may end in CR LF; a text without any is cut all the same.
TEST_F(CalibrationData, PlainTextIsCutIntoPassages) {
  for (const std::string between : {"\n\n", "\n \n", "\n\t \n \n", "\r\n\r\n", "\r\n \r\n", "\n"}) {
    std::string text = " \n\r\n";
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(1000 + i) + std::string(240, '.') + between;
    const auto path = write("text.txt", text);
    const auto set = read({{path, 1}}, 1000, 250);
    ASSERT_TRUE(set.has_value()) << set.error().message();
    const bool lines_only = between == "\n";
    EXPECT_GE(set->files[0].documents, lines_only ? 6 : 20) << testing::PrintToString(between);
    EXPECT_LE(set->files[0].documents, lines_only ? 7 : 26) << testing::PrintToString(between);
    // Nothing is lost, and passages begin with a line.
    const std::string read_back = text_of(*set);
    for (int i = 0; i < 400; ++i)
      ASSERT_NE(read_back.find("line " + std::to_string(1000 + i) + "."), std::string::npos) << i;
    EXPECT_EQ(read_back.substr(0, 5), "line ");
  }
}

TEST_F(CalibrationData, CoverageCountsPositions) {
  CalibrationSet set;
  set.samples = {std::vector<TokenId>(600), std::vector<TokenId>(3000)};
  const auto coverage = set.coverage();
  EXPECT_EQ(coverage[0].tokens, 1024);
  EXPECT_EQ(coverage[1].tokens, 88 + 1536);
  EXPECT_EQ(coverage[2].tokens, 952);
  EXPECT_EQ(coverage[3].tokens, 0);
}

TEST_F(CalibrationData, SamplesKnowTheLinesTheyComeFrom) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"<document " + std::to_string(100 + i) + ">\"}\n\n";
  const auto path = write("a.jsonl", lines);
  const auto set = read({{path, 1}}, 10, 50, 7);
  ASSERT_TRUE(set.has_value());
  ASSERT_EQ(set->origins.size(), set->samples.size());
  for (size_t s = 0; s < set->samples.size(); ++s) {
    std::string text;
    for (const TokenId token : set->samples[s]) text += static_cast<char>(token);
    for (size_t at = text.find("<document "); at != std::string::npos && at + 13 <= text.size();
         at = text.find("<document ", at + 1)) {
      const int64_t line = 2 * (std::stoi(text.substr(at + 10, 3)) - 100) + 1;
      EXPECT_EQ(std::count(set->origins[s].lines.begin(), set->origins[s].lines.end(), line), 1) << line;
    }
    EXPECT_LE(set->origins[s].lines.size(), 5u);
  }
  EXPECT_NE(set->describe_sample(2).find("a.jsonl, what begins in lines "), std::string::npos);
}

TEST_F(CalibrationData, PartsOfTheContextThatTheTextHardlyReachesAreNoted) {
  config_.max_position = 8192;
  const auto text = write("long.txt", std::string(100'000, 'a'));
  const auto says = [](const CalibrationSet& set, const std::string& words) {
    return std::any_of(set.notes.begin(), set.notes.end(),
                       [&](const std::string& note) { return note.find(words) != std::string::npos; });
  };
  const auto some = read({{text, 1}}, 20, 1024);
  ASSERT_TRUE(some.has_value());
  EXPECT_TRUE(says(*some, "0 at positions 2048 to 8191"));
  EXPECT_FALSE(says(*some, "positions 512 to 2047"));
  EXPECT_FALSE(says(*some, "8192"));
  const auto all = read({{text, 1}}, 11, 8192);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(says(*all, "positions"));
}

TEST_F(CalibrationData, BadInputIsNamed) {
  const auto error = [](const auto& result) { return result ? std::string() : result.error().message(); };
  const auto good = write("good.txt", std::string(1000, 'g'));
  EXPECT_NE(error(read({{write("empty.txt", " \n\n"), 1}}, 4, 64)).find("is empty"), std::string::npos);
  EXPECT_NE(error(read({{write("empty.jsonl", ""), 1}}, 4, 64)).find("is empty"), std::string::npos);
  EXPECT_NE(error(read({{write("short.txt", "abc"), 1}}, 4, 64)).find("too little calibration text"),
            std::string::npos);
  EXPECT_NE(error(read({{write("keys.jsonl", "{\"text\": \"a\"}\n\n{\"prompt\": \"b\"}\n"), 1}}, 4, 64)).find("line 3"),
            std::string::npos);
  EXPECT_NE(error(read({{write("broken.jsonl", "{\"text\": \n"), 1}}, 4, 64)).find("line 1"), std::string::npos);
  EXPECT_NE(error(read({{good, 1}}, 4, 257)).find("--length"), std::string::npos);  // the model's context is 256
  EXPECT_NE(error(read({{good, 1}}, 0, 64)).find("--samples"), std::string::npos);
  EXPECT_NE(error(read({{folder_ / "nothing.txt", 1}}, 4, 64)), "");
}

TEST(CalibrationSources, WeightsAndPaths) {
  const auto sources = parse_calibration_sources("a.jsonl:0.7,b:c.txt,d:2");
  ASSERT_TRUE(sources.has_value());
  ASSERT_EQ(sources->size(), 3u);
  EXPECT_EQ((*sources)[0].path, "a.jsonl");
  EXPECT_EQ((*sources)[0].weight, 0.7);
  EXPECT_EQ((*sources)[1].path, "b:c.txt");
  EXPECT_EQ((*sources)[1].weight, 1.0);
  EXPECT_EQ((*sources)[2].weight, 2.0);
  for (const std::string_view bad : {"", "a,,b", "a:0", "a:-1", ":1"})
    EXPECT_FALSE(parse_calibration_sources(bad).has_value()) << bad;
}

}  // namespace
}  // namespace octavo
