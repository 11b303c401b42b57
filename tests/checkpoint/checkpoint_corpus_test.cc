// Every input that the fuzzers of this layer started from or stumbled on, run again.
#include <gtest/gtest.h>

#include <functional>

#include "../../fuzz/target_gguf.h"
#include "../../fuzz/target_model_config.h"
#include "../../fuzz/target_safetensors.h"
#include "checkpoint/container_support.h"

namespace octavo {
namespace {

void replay(const std::string& name, const std::function<void(std::span<const std::byte>)>& target) {
  int inputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(kTestData / "../../fuzz/corpus" / name)) {
    SCOPED_TRACE(file.path().string());
    const std::string bytes = read_bytes(file.path());
    target(std::as_bytes(std::span(bytes)));
    ++inputs;
  }
  EXPECT_GT(inputs, 10);
}

TEST(Corpus, Safetensors) {
  replay("safetensors", fuzz_safetensors);
}
TEST(Corpus, Gguf) {
  replay("gguf", fuzz_gguf);
}
TEST(Corpus, ModelConfig) {
  replay("model_config", fuzz_model_config);
}

}  // namespace
}  // namespace octavo
