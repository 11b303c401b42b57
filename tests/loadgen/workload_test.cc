// URLs, lengths, synthetic prompts and data sets.
#include "loadgen/workload.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "loadgen/server_address.h"

namespace octavo {
namespace {

TEST(ServerUrl, Parts) {
  const auto text = [](const char* url) { return parse_server_url(url).value().text(); };
  EXPECT_EQ(text("http://localhost:8000"), "http://localhost:8000");
  EXPECT_EQ(text("http://localhost:8000/v1/"), "http://localhost:8000");
  EXPECT_EQ(text("https://api.example/"), "https://api.example");
  EXPECT_EQ(text("https://api.example:8443/llm/v1"), "https://api.example:8443/llm");
  EXPECT_EQ(text("http://[::1]:80/"), "http://[::1]");
  EXPECT_EQ(parse_server_url("http://[::1]:81").value().host, "::1");
  EXPECT_EQ(parse_server_url("https://x").value().port, "443");
  for (const char* bad : {"", "ftp://x", "http://", "http://:80", "http://x:0", "http://x:99999", "http://x:8a",
                          "http://[::1", "http://a@b", "http://x?y", "http://x y", "http://x:"})
    EXPECT_FALSE(parse_server_url(bad)) << bad;
}

TEST(Workload, LengthRanges) {
  EXPECT_EQ(parse_length_range("64-256", "--input-len").value().high, 256);
  EXPECT_EQ(parse_length_range("7", "--input-len").value().low, 7);
  for (const char* bad : {"", "0", "-5", "5-", "9-3", "1.5", "x", "1-2-3", "99999999999999999999"})
    EXPECT_FALSE(parse_length_range(bad, "--input-len")) << bad;
}

TEST(Workload, SyntheticPromptsOfTokens) {
  const SyntheticWorkload workload = {
      .count = 200, .input = {20, 40}, .output = {5, 9}, .shared_prefix = 6, .token_ids = {3, 5, 8, 13}, .seed = 4};
  const RequestShape shape = {.model = "m", .ignore_eos = true};
  const std::vector<std::string> bodies = synthetic_requests(workload, shape);
  EXPECT_EQ(bodies, synthetic_requests(workload, shape));
  std::set<size_t> input_lengths, output_lengths;
  std::set<Json> prefixes, prompts;
  for (const std::string& body : bodies) {
    const Json json = Json::parse(body);
    const Json& prompt = json["prompt"];
    for (const Json& id : prompt) EXPECT_TRUE(id == 3 || id == 5 || id == 8 || id == 13);
    prefixes.insert(Json(prompt.begin(), prompt.begin() + 6));
    prompts.insert(prompt);
    input_lengths.insert(prompt.size());
    output_lengths.insert(json["max_tokens"].get<size_t>());
    EXPECT_EQ(json["ignore_eos"], true);
    EXPECT_EQ(json["stream_options"]["include_usage"], true);
  }
  EXPECT_EQ(prefixes.size(), 1u);
  EXPECT_EQ(prompts.size(), bodies.size());
  EXPECT_EQ(*input_lengths.begin(), 26u);
  EXPECT_EQ(*input_lengths.rbegin(), 46u);
  EXPECT_EQ(output_lengths, (std::set<size_t>{5, 6, 7, 8, 9}));
}

TEST(Workload, SyntheticChats) {
  const SyntheticWorkload workload = {.count = 3, .input = {30, 30}, .output = {8, 8}, .shared_prefix = 10};
  const std::vector<std::string> bodies = synthetic_requests(workload, {.model = "m", .chat = true});
  const std::string first = Json::parse(bodies[0])["messages"][0]["content"],
                    second = Json::parse(bodies[1])["messages"][0]["content"];
  EXPECT_EQ(std::count(first.begin(), first.end(), ' '), 39);
  EXPECT_NE(first, second);
  EXPECT_EQ(first.substr(0, 30), second.substr(0, 30));
  EXPECT_EQ(Json::parse(bodies[0])["max_completion_tokens"], 8);
}

struct DataSet : ::testing::Test {
  Result<std::vector<std::string>> read(const std::string& text, size_t count, bool chat) {
    EXPECT_TRUE(write_text_file(path, text));
    return dataset_requests(path, count, {16, 16}, 0, {.model = "m", .chat = chat});
  }
  ~DataSet() override { std::filesystem::remove(path); }
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("octavo-dataset-" + std::to_string(getpid()) + ".jsonl");
};

TEST_F(DataSet, PromptsMessagesAndLengths) {
  const std::string text =
      "{\"prompt\": \"a\"}\n\n{\"prompt\": [1, 2], \"output_tokens\": 3, \"other\": 1}\r\n{\"prompt\": \"c\", "
      "\"max_tokens\": 4}";
  const Result<std::vector<std::string>> all = read(text, 0, false);
  ASSERT_TRUE(all) << all.error().message();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ(Json::parse((*all)[0])["prompt"], "a");
  EXPECT_EQ(Json::parse((*all)[0])["max_tokens"], 16);
  EXPECT_EQ(Json::parse((*all)[1])["prompt"], Json({1, 2}));
  EXPECT_EQ(Json::parse((*all)[1])["max_tokens"], 3);
  EXPECT_EQ(read(text, 2, false)->size(), 2u);
  EXPECT_EQ(read(text, 7, false)->at(6), all->at(0));
  const auto chat = read("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n{\"prompt\": \"x\"}", 0, true);
  ASSERT_TRUE(chat) << chat.error().message();
  EXPECT_EQ(Json::parse(chat->at(0))["messages"][0]["content"], "hi");
  EXPECT_EQ(Json::parse(chat->at(1))["messages"][0]["content"], "x");
}

TEST_F(DataSet, BadLinesAreNamed) {
  for (const char* bad : {"{\"prompt\": 5}", "[]", "{", "{}", "{\"prompt\": []}", "{\"prompt\": [-1]}",
                          "{\"prompt\": [1.5]}", "{\"messages\": []}", "{\"messages\": \"x\"}",
                          "{\"prompt\": \"a\", \"output_tokens\": 0}", "{\"prompt\": \"a\", \"output_tokens\": \"x\"}"})
    for (const bool chat : {false, true}) {
      const auto refused = read(std::string("{\"prompt\": \"good\"}\n") + bad, 0, chat);
      ASSERT_FALSE(refused) << bad;
      EXPECT_NE(refused.error().where.find("line 2"), std::string::npos) << refused.error().message();
    }
  EXPECT_NE(read("{\"messages\": [{}]}", 0, false).error().remedy.find("chat"), std::string::npos);
  EXPECT_FALSE(read("{\"prompt\": [1]}", 0, true));
  EXPECT_FALSE(read("\n \n", 0, false));
  EXPECT_FALSE(dataset_requests(path.string() + ".missing", 0, {}, 0, {}));
}

}  // namespace
}  // namespace octavo
