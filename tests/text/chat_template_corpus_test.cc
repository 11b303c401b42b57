// Every input that the chat template fuzzer started from or stumbled on, run again.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "../../fuzz/target_chat_template.h"
#include "base/file.h"

namespace octavo {
namespace {

TEST(Corpus, ChatTemplate) {
  int inputs = 0;
  const auto folder = std::filesystem::path(OCTAVO_TEST_DATA) / "../../fuzz/corpus/chat_template";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    const auto text = read_text_file(file.path());
    ASSERT_TRUE(text) << text.error().message();
    fuzz_chat_template(*text);
    ++inputs;
  }
  EXPECT_GT(inputs, 50);
}

}  // namespace
}  // namespace octavo
