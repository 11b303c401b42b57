#include "evaluate/speed.h"

#include <gtest/gtest.h>

#include "evaluate/batch_speed.h"
#include "support/test_models.h"

namespace octavo {
namespace {

// The bytes of the cache that a step is said to read are those of the context it ran at.
TEST(Speed, DecodeStepsFollowThePromptWhereThatIsAsked) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "bf16");
  const double per_token = model->kv_geometry().bytes_per_token();
  SpeedOptions options{.prompt = 100, .generate = 2, .depth = 50, .repeat = 1};
  EXPECT_DOUBLE_EQ(measure_speed(*model, options)->decode_bytes_kv, per_token * (50 + 1 + 1));
  options.decode_after_prompt = true;
  EXPECT_DOUBLE_EQ(measure_speed(*model, options)->decode_bytes_kv, per_token * (50 + 100 + 1));
}

TEST(Speed, RefusesNumbersBeyondTheContextAndBeyondReason) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "bf16");
  constexpr int64_t kHuge = INT64_MAX - 3;
  for (const auto& [options, flag] : {std::pair{SpeedOptions{.prompt = kHuge, .generate = kHuge}, "--prompt"},
                                      {SpeedOptions{.generate = kHuge}, "--generate"},
                                      {SpeedOptions{.depth = kHuge}, "--depth"},
                                      {SpeedOptions{.depth = -1}, "--depth"},
                                      {SpeedOptions{.prompt = 0}, "--prompt"},
                                      {SpeedOptions{.prompt = 8, .repeat = 0}, "--repeat"}}) {
    const auto result = measure_speed(*model, options);
    ASSERT_FALSE(result.has_value()) << flag;
    EXPECT_EQ(result.error().where, flag);
  }
}

TEST(BatchSpeed, SequencesStandAtTheirDepth) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "bf16");
  const BatchSpeedOptions options{.batch = 3, .prompt = 40, .generate = 2, .depth = 200, .repeat = 1, .warm_up = false};
  const auto deep = measure_batch_speed(*model, options);
  ASSERT_TRUE(deep.has_value()) << deep.error().message();
  EXPECT_GT(deep->output, 0);
  EXPECT_GT(deep->decode, deep->output);
  BatchSpeedOptions long_options = options;
  long_options.depth = 480;  // the model's context is 512
  const auto refused = measure_batch_speed(*model, long_options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().found, "522 tokens");
}

}  // namespace
}  // namespace octavo
