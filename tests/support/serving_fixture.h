// Serving: a fixture with an engine on a model that follows a script.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/serving.h"
#include "support/serving_client.h"
#include "support/test_models.h"

namespace octavo {

inline const std::vector<std::string> kLetters = {
    "ABC", "DEF", "G", "HI", "J", "K", "LMN", "OP", ScriptModel::kEndOfText};
inline const std::vector<std::vector<std::string>> kScripts = {
    kLetters,
    {"1", "\xF0", "\x9F", "\x8C", "\xB6", "2"},
    {"3", "\xF0\x9F\x91", "\xA9\xE2\x80\x8D", "\xF0\x9F\x92\xBB", "4"},
    {"5", "\xC3", ScriptModel::kEndOfText},
    {"6", "\xFF", "A", "7"},
    {"8", "caf", "\xC3\xA9", "!"},
    {"9", "x", "\xCE", "\xBA", "?"},
};

class Serving : public testing::Test {
 protected:
  Serving()
      : script_(kScripts),
        model_(script_.load("fp8")),
        engine_(*model_, {.kv_cache_tokens = 1024, .max_num_batched_tokens = 64}),
        client_(engine_) {}

  GenerationRequest request(const std::vector<std::string>& prompt, int64_t max_tokens = 20) const {
    GenerationRequest r;
    r.prompt = script_.ids(prompt);
    r.max_tokens = max_tokens;
    return r;
  }
  GenerationRequest letters(std::vector<std::string> stop, int64_t max_tokens = 20) const {
    GenerationRequest r = request({"ABC"}, max_tokens);
    r.stop = std::move(stop);
    return r;
  }
  // An ordinary request still gets its answer, and nothing is left behind.
  void expect_alive() {
    engine_.drain();
    const Collected answer = client_.ask(letters({}));
    EXPECT_EQ(answer.text, "DEFGHIJKLMNOP");
    EXPECT_EQ(answer.finish_reason, "stop");
    const EngineStats stats = engine_.stats();
    EXPECT_EQ(stats.pages_used, 0);
    EXPECT_EQ(stats.running, 0);
  }

  ScriptModel script_;
  std::unique_ptr<Model> model_;
  ServingEngine engine_;
  ServingClient client_;
};

}  // namespace octavo
