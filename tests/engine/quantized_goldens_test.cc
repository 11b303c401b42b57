// Checkpoints that quantization libraries wrote: logits of the stored weights under FP32 activations, against
// transformers on the dequantized weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "engine/sequence.h"
#include "support/golden.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr double kBound = 1e-3;

// Worst relative error of a folder's logits; reports why where it cannot be loaded.
double worst_error(const fs::path& folder) {
  const bool gguf = fs::exists(folder / "model.gguf");
  ModelOptions options{.text = false};
  options.plan.scheme = "float32";
  options.threads = 2;
  const auto model = Model::load(gguf ? folder / "model.gguf" : folder, options);
  if (!model) {
    ADD_FAILURE() << folder << ": " << model.error().message();
    return INFINITY;
  }
  const Golden golden(folder / "golden.safetensors");
  const std::vector<int32_t> ids = golden.ints("input_ids");
  const std::vector<float> logits = golden.floats("logits");
  const auto vocab = static_cast<size_t>((*model)->config().vocab_size);
  PagePool kv = (*model)->make_kv_cache(static_cast<int64_t>(ids.size()));
  Sequence sequence(**model, kv);
  double worst = 0;
  const auto compare = [&](int64_t first, const float* rows, int64_t count, int64_t stride) {
    for (int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<size_t>(first + i) * vocab;
      worst = std::max(worst, relative_error({rows + i * stride, vocab}, std::span(logits).subspan(row, vocab)));
    }
  };
  const auto fed = sequence.feed_all_logits(ids, compare, static_cast<int64_t>(ids.size()));
  EXPECT_TRUE(fed.has_value()) << folder;
  return worst;
}

// The tests' own data, or a larger folder of such checkpoints, given by OCTAVO_GOLDENS. Architectures that do not run
// are named.
TEST(QuantizedGoldens, LogitsOfEveryDialectAgree) {
  const char* given = std::getenv("OCTAVO_GOLDENS");
  int folders = 0;
  for (const auto& folder : fs::directory_iterator(given != nullptr ? given : test_data("quantized"))) {
    const std::string name = folder.path().filename().string();
    const bool runs = name.find("gpt_oss") == std::string::npos && name.find("deepseek") == std::string::npos;
    if (!runs || !fs::exists(folder.path() / "golden.safetensors")) continue;
    EXPECT_LT(worst_error(folder.path()), kBound) << name;
    ++folders;
  }
  EXPECT_GT(folders, given != nullptr ? 40 : 30);
}

}  // namespace
}  // namespace octavo
