// Needle grid, KV table and baseline answers on small models.
#include <gtest/gtest.h>

#include "base/random.h"
#include "evaluate/answers.h"
#include "evaluate/kv_table.h"
#include "evaluate/needle.h"
#include "support/kv_calibration_file.h"
#include "support/test_models.h"

namespace octavo {
namespace {

std::string long_text() {
  std::string text;
  Random random(11);
  for (int i = 0; i < 1500; ++i) text += i % 40 == 39 ? '.' : static_cast<char>('a' + random.below(26));
  return text;
}

std::string text_of(const Model& model, std::span<const TokenId> ids) {
  return model.tokenizer().decode(ids, false);
}

TEST(Needle, StandsAtItsDepthAndFillsTheLength) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "bf16");
  const std::vector<TokenId> haystack = model->tokenizer().encode(long_text(), false);
  for (const int64_t depth : {0, 25, 50, 100}) {
    const auto span = needle_span(*model, haystack, 400, depth, "Lima", "12345");
    ASSERT_TRUE(span.has_value()) << span.error().message();
    EXPECT_EQ(span->tokens.size(), 400u);
    EXPECT_EQ(span->scored, 6);  // a byte each: a space and five digits
    const std::string text = text_of(*model, span->tokens);
    EXPECT_TRUE(text.ends_with("\n\nThe secret number of Lima is 12345")) << text;
    const size_t at = text.find(" The secret number of Lima is 12345.");
    ASSERT_NE(at, std::string::npos);
    const double hay = 400.0 - 36 - 36;
    EXPECT_LE(static_cast<double>(at), hay * static_cast<double>(depth) / 100);
    EXPECT_GT(static_cast<double>(at), hay * static_cast<double>(depth) / 100 - 64);
    if (at > 0 && at < static_cast<size_t>(hay)) {
      EXPECT_EQ(text[at - 1], '.') << depth;  // a sentence ends before it
    }
  }
}

TEST(Needle, GridHasEveryCellAndRefusesWhatCannotBe) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "fp8");
  const auto grid = needle_grid(*model, long_text(), {.lengths = {128, 512}, .depths = {0, 50, 100}, .tries = 2});
  ASSERT_TRUE(grid.has_value()) << grid.error().message();
  ASSERT_EQ(grid->size(), 6u);
  EXPECT_EQ((*grid)[4].length, 512);
  EXPECT_EQ((*grid)[4].depth, 50);
  for (const NeedleCell& cell : *grid) EXPECT_LT(cell.logprob, 0);
  EXPECT_FALSE(needle_grid(*model, long_text(), {.lengths = {513}}).has_value());
  EXPECT_FALSE(needle_grid(*model, long_text(), {.lengths = {128}, .depths = {101}}).has_value());
  const auto short_text = needle_grid(*model, "too short", {.lengths = {128}});
  ASSERT_FALSE(short_text.has_value());
  EXPECT_EQ(short_text.error().where, "--text");
}

TEST(KvTable, RowsAreTheComparisonsWithBf16) {
  const TinyModelFolder folder("llama_untied_hd64");
  ModelSpec spec{.path = folder.path()};
  spec.options.plan.scheme = "fp8";
  spec.options.threads = 1;
  const std::vector<KvChoice> choices = {parse_kv_choice("fp8_e4m3").value(), parse_kv_choice("int8/bf16").value()};
  EXPECT_FALSE(parse_kv_choice("fp9").has_value());
  const auto rows = kv_table(spec, long_text(), {.choices = choices, .contexts = {64, 128}, .windows = 2});
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  ASSERT_EQ(rows->size(), 4u);
  EXPECT_EQ((*rows)[1].choice.name(), "int8/bf16");
  EXPECT_EQ((*rows)[2].context, 128);
  ModelOptions wide = spec.options;
  wide.plan.kv_cache_dtype = "bf16";
  const auto base = Model::load(folder.path(), wide), candidate = Model::load(folder.path(), spec.options);
  const auto expected = compare(**base, **candidate, long_text(), {.context = 128, .windows = 2});
  EXPECT_EQ((*rows)[2].result->kl_mean, expected->kl_mean);
  EXPECT_EQ((*rows)[2].bytes_per_token, (*candidate)->kv_geometry().bytes_per_token());
  EXPECT_GT((*rows)[2].result->kl_mean, (*rows)[3].result->kl_mean);  // E4M3 for both loses more than INT8 keys
}

TEST(KvTable, ContextsAndTextAreCheckedBeforeAnythingIsMeasured) {
  const TinyModelFolder folder("llama_untied_hd64");
  const ModelSpec spec{.path = folder.path()};
  const std::vector<KvChoice> choices = {parse_kv_choice("int8").value()};
  for (const int64_t context : {int64_t{0}, int64_t{-5}, int64_t{1}, int64_t{513}}) {
    const auto rows = kv_table(spec, long_text(), {.choices = choices, .contexts = {64, context}},
                               [](std::string_view, int64_t, int64_t) { ADD_FAILURE() << "a row was measured"; });
    ASSERT_FALSE(rows.has_value()) << context;
    EXPECT_EQ(rows.error().where, "--contexts");
  }
  const auto rows = kv_table(spec, long_text().substr(0, 100), {.choices = choices, .contexts = {64, 128}});
  ASSERT_FALSE(rows.has_value());
  EXPECT_EQ(rows.error().where, "--text");
}

TEST(KvTable, TheBf16RowHasTheBytesOfTheModelItRan) {
  const TinyModelFolder folder("llama_untied_hd64");
  ModelSpec spec{.path = folder.path()};
  spec.options.plan.scheme = "bf16";
  const auto rows = kv_table(spec, long_text(), {.choices = {parse_kv_choice("int8").value()}, .contexts = {64}});
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  EXPECT_EQ((*rows)[0].bf16_bytes_per_token, load_test_model(folder.path(), "bf16")->kv_geometry().bytes_per_token(64));
}

TEST(KvTable, FactorsOfACacheWithoutAnOptionForThemAreNoChoice) {
  const TinyModelFolder folder("llama_untied_hd64");
  const Checkpoint plain = Checkpoint::open(folder.path()).value();
  KvCalibration calibration = made_up_kv_calibration(plain.config());  // with factors that are not 1
  for (const auto& [cache, named] : {std::pair{"bf16", false}, {"int8:static:skip0", true}}) {
    calibration.kv_cache = cache;
    write_kv_calibration(folder.path() / "octavo_kv.json", calibration, plain.config());
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    const std::vector<KvChoice> choices = kv_choices(*checkpoint);
    EXPECT_EQ(choices.back().name() == std::string(cache) + ":temperature", named) << cache;
  }
  calibration.kv_cache = "fp9";
  write_kv_calibration(folder.path() / "octavo_kv.json", calibration, plain.config());
  const auto refused = Checkpoint::open(folder.path());
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().where.find("kv_cache"), std::string::npos) << refused.error().message();
}

TEST(Answers, BoundaryInputsAreAnsweredOrRefused) {
  const TinyModelFolder folder("llama_untied_hd64");
  const auto model = load_test_model(folder.path(), "fp8");
  const std::vector<AnswerPrompt> prompts = boundary_prompts(*model);
  const auto lines = write_answers(*model, prompts, 8);
  ASSERT_TRUE(lines.has_value()) << lines.error().message();
  ASSERT_EQ(lines->size(), prompts.size() + 1);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json& line = (*lines)[i + 1];
    const bool refused = prompts[i].id == "empty" || prompts[i].id == "longer than the context";
    EXPECT_EQ(line.contains("error"), refused) << line.dump();
    if (!refused) {
      EXPECT_GT(line["logprobs"].size(), 0u) << prompts[i].id;
    }
    if (prompts[i].id == "longest context") {
      EXPECT_EQ(line["tokens"].size(), 1u);
    }
  }
}

TEST(Answers, DiffNamesTheFirstDifferentToken) {
  const TestFolder prompts_folder;
  prompts_folder.write("prompts.jsonl", "{\"id\": \"a\", \"prompt\": \"x\"}\n{\"tokens\": [89]}\n");
  const ScriptModel script({{"x", " one", " two", " three", "<end>"}, {"Y", " yes"}});
  const auto base = script.load("bf16");
  const auto prompts = read_prompts(*base, prompts_folder.path() / "prompts.jsonl");
  ASSERT_TRUE(prompts.has_value()) << prompts.error().message();
  const auto before = write_answers(*base, *prompts, 4);
  ASSERT_TRUE(before.has_value()) << before.error().message();
  EXPECT_EQ((*before)[1]["text"], " one two three");
  EXPECT_EQ((*before)[1]["finish_reason"], "stop");
  auto same = compare_answers(*before, write_answers(*base, *prompts, 4).value());
  ASSERT_TRUE(same.has_value());
  EXPECT_TRUE((*same)[0].same && (*same)[1].same);
  std::vector<Json> changed = *before;
  changed[1]["tokens"][1] = 7;
  const auto rows = compare_answers(changed, *before);
  ASSERT_TRUE(rows.has_value());
  EXPECT_FALSE((*rows)[0].same);
  EXPECT_EQ((*rows)[0].common, 1);
  EXPECT_TRUE((*rows)[1].same);
  EXPECT_FALSE(compare_answers(*before, write_answers(*base, *prompts, 5).value()).has_value());
  changed.pop_back();
  EXPECT_FALSE(compare_answers(changed, *before).has_value());
  changed[0] = Json::object();
  EXPECT_FALSE(compare_answers(changed, *before).has_value());
}

}  // namespace
}  // namespace octavo
