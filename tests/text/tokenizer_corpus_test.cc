// Every input that the tokenizer fuzzer started from or stumbled on, run again.
#include "../../fuzz/target_tokenizer.h"
#include "tokenizer_data.h"

namespace octavo {
namespace {

TEST(TokenizerCorpus, EndsWell) {
  const auto folder = std::filesystem::path(OCTAVO_TEST_DATA) / "../../fuzz/corpus/tokenizer";
  int inputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    const auto bytes = read_text_file(file.path());
    ASSERT_TRUE(bytes);
    fuzz_tokenizer(*bytes);
    ++inputs;
  }
  EXPECT_GE(inputs, 10);
}

}  // namespace
}  // namespace octavo
