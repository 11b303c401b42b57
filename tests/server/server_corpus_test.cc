// Every input that the fuzzers of this layer started from or stumbled on, run again; and a fuzzer of the HTTP layer
// small enough to be a test.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <vector>

#include "../../fuzz/target_constraint.h"
#include "../../fuzz/target_http.h"
#include "../../fuzz/target_openai_request.h"
#include "base/random.h"

namespace octavo {
namespace {

std::vector<std::string> corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(OCTAVO_TEST_DATA) + "/../../fuzz/corpus/" + name))
    paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  EXPECT_GT(inputs.size(), 5u);
  return inputs;
}

TEST(Corpus, OpenAiRequests) {
  for (const std::string& input : corpus("openai_request")) fuzz_openai_request(std::as_bytes(std::span(input)));
}

TEST(Corpus, Constraints) {
  for (const std::string& input : corpus("constraint")) fuzz_constraint(std::as_bytes(std::span(input)));
}

TEST(Corpus, HttpWithRandomChanges) {
  const std::vector<std::string> inputs = corpus("http");
  const char* longer = std::getenv("OCTAVO_FUZZ_SECONDS");  // with another seed
  const int seconds = longer == nullptr ? 0 : std::atoi(longer);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  Random random(11 + static_cast<uint64_t>(seconds));
  int round = 0;
  for (; round < 3000 || std::chrono::steady_clock::now() < end; ++round) {
    std::string input = inputs[random.below(inputs.size())];
    for (uint64_t change = round < 20 ? 0 : random.below(6); change > 0 && !input.empty(); --change) {
      const size_t at = random.below(input.size());
      switch (random.below(4)) {
        case 0:
          input[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          input.erase(at, random.below(8));
          break;
        case 2:
          input.insert(at, inputs[random.below(inputs.size())].substr(0, random.below(60)));
          break;
        default:
          input.insert(at, 1 + random.below(30), input[at]);
      }
    }
    const std::string answer = fuzz_http(std::as_bytes(std::span(input)));
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.")) << answer;
  }
  RecordProperty("rounds", round);
}

}  // namespace
}  // namespace octavo
