#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>

#include "base/file.h"
#include "evaluate/run_task.h"
#include "evaluate/tasks/judge.h"
#include "support/test_models.h"

namespace octavo {
namespace {

TEST(JudgeChoices, SumsAndLengths) {
  const std::vector<std::string> choices = {"ab", "abcdefgh",
                                            "\u00e4\u00f6\u00fc"};  // 2, 8, 3 characters; 2, 8, 6 bytes
  const std::vector<double> sums = {-2.0, -6.0, -2.7};
  const ChoiceVerdict verdict = judge_choices(sums, choices);
  EXPECT_EQ(verdict.by_sum, 0);
  EXPECT_EQ(verdict.by_characters, 1);  // -1, -0.75, -0.9
  EXPECT_EQ(verdict.by_bytes, 2);       // -1, -0.75, -0.45
  // The first among equals.
  EXPECT_EQ(judge_choices(std::vector<double>{-1, -1}, std::vector<std::string>{"a", "b"}).by_sum, 0);
}

TEST(Gsm8k, NumbersAsTheHarnessFindsThem) {
  EXPECT_EQ(strict_number("so 3\n#### 1,234.5\n#### 7"), "1,234.5");
  EXPECT_EQ(strict_number("#### -18 dollars"), "-18");
  EXPECT_EQ(strict_number("#### about 5, #### 6"), "6");
  EXPECT_EQ(strict_number("the answer is 5"), "[invalid]");
  EXPECT_EQ(flexible_number("it is 5 or $1,200."), "$1,200.");
  EXPECT_EQ(flexible_number("it is -7"), "-7");
  EXPECT_EQ(flexible_number("12 apples, 3"), "3");
  EXPECT_EQ(flexible_number("1 to 2...."), "2....");
  EXPECT_EQ(flexible_number("none"), "[invalid]");
  EXPECT_TRUE(same_number("$1,200.", "He pays\n#### 1200"));
  EXPECT_TRUE(same_number("18", "9 * 2 = $<<9*2=18>>18\n#### 18"));
  EXPECT_FALSE(same_number("18.0", "#### 18"));
  EXPECT_FALSE(same_number("[invalid]", "#### 18"));
}

Task load(const TestFolder& folder, const std::string& name, const std::string& data, TaskSelection selection = {}) {
  folder.write("data.jsonl", data);
  auto task = load_task(name, folder.path() / "data.jsonl", selection);
  if (!task) throw std::runtime_error(task.error().message());
  return std::move(*task);
}

TEST(Tasks, PromptsOfTheBuiltInTasks) {
  const TestFolder folder;
  const Task arc = load(
      folder, "arc_easy",
      R"({"query": "Question: Hot?", "choices": ["ice", "fire"], "gold": 1})"
      "\n\n"
      R"({"id": "M1", "question": "Cold?", "choices": {"text": ["ice", "fire"], "label": ["1", "2"]}, "answerKey": "1"})"
      "\n");
  EXPECT_EQ(arc.items[0].prompt, "Question: Hot?\nAnswer:");
  EXPECT_EQ(arc.items[0].id, "0");
  EXPECT_EQ(arc.items[1].prompt, "Question: Cold?\nAnswer:");
  EXPECT_EQ(arc.items[1].gold, 0);
  EXPECT_EQ(few_shot_examples(arc), "Question: Hot?\nAnswer: fire\n\nQuestion: Cold?\nAnswer: ice\n\n");
  const Task piqa = load(folder, "piqa", R"({"goal": "Open.", "sol1": "Pull", "sol2": "Eat", "label": 0})");
  EXPECT_EQ(piqa.items[0].prompt, "Question: Open.\nAnswer:");
  EXPECT_EQ(piqa.items[0].choices, (std::vector<std::string>{"Pull", "Eat"}));
  const Task mmlu =
      load(folder, "mmlu",
           R"({"question": " 1+1? ", "choices": ["1", "2", "3", "4"], "answer": 1, "subject": "college_maths"})");
  EXPECT_EQ(mmlu.items[0].preamble,
            "The following are multiple choice questions (with answers) about college maths.\n\n");
  EXPECT_EQ(mmlu.items[0].prompt, "1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:");
  EXPECT_EQ(mmlu.items[0].choices[1], "B");
  const Task lambada = load(folder, "lambada", R"({"text": "he came home"})");
  EXPECT_EQ(lambada.items[0].prompt, "he came");
  EXPECT_EQ(lambada.items[0].answer, " home");
}

TEST(Tasks, SelectionIsFirstOrSeeded) {
  const TestFolder folder;
  std::string data;
  for (int i = 0; i < 50; ++i) data += fmt::format("{{\"text\": \"a w{}\"}}\n", i);
  const auto words = [&](TaskSelection selection) {
    std::vector<std::string> out;
    for (const TaskItem& item : load(folder, "lambada", data, selection).items) out.push_back(item.answer);
    return out;
  };
  EXPECT_EQ(words({.limit = 2}), (std::vector<std::string>{" w0", " w1"}));
  EXPECT_EQ(words({.limit = 10, .seed = 3}), words({.limit = 10, .seed = 3}));
  EXPECT_NE(words({.limit = 10, .seed = 3}), words({.limit = 10, .seed = 4}));
  EXPECT_EQ(words({.seed = 9}).size(), 50u);
}

TEST(Tasks, BadDataIsNamed) {
  const TestFolder folder;
  const auto error = [&](const std::string& name, const std::string& data) {
    folder.write("data.jsonl", data);
    const auto task = load_task(name, folder.path() / "data.jsonl", {});
    return task ? std::string("no error") : task.error().message();
  };
  EXPECT_NE(error("arc_easy", "{}\n{").find("line 2"), std::string::npos);
  EXPECT_NE(error("arc_easy", R"({"query": "q", "choices": ["a"], "gold": 1})").find("gold"), std::string::npos);
  EXPECT_NE(error("arc_easy", R"({"query": 3, "choices": ["a"], "gold": 0})").find("query"), std::string::npos);
  EXPECT_NE(error("arc_easy", "[1]").find("object"), std::string::npos);
  EXPECT_NE(error("arc_easy", "\n \n").find("no items"), std::string::npos);
  EXPECT_NE(error("arc_easy", "\x1F\x8B\x08").find("gunzip"), std::string::npos);
  EXPECT_NE(error("arc_hard", "{}").find("piqa"), std::string::npos);
  EXPECT_NE(error("gsm8k", R"({"question": "q", "answer": "5"})").find("####"), std::string::npos);
}

// Continuations of the script are certain, all others impossible.
class TaskRuns : public testing::Test {
 protected:
  TaskRuns() : script_({{":", " ", "y", "e", "s", "<end>"}, {"A", "B"}}, 256), model_(script_.load("bf16")) {}

  ScriptModel script_;
  std::unique_ptr<Model> model_;
  TestFolder folder_;
};

TEST_F(TaskRuns, MultipleChoiceByFormula) {
  std::string data;
  for (int i = 0; i < 40; ++i)  // more than one batch
    data += fmt::format(R"({{"query": "q{}", "choices": ["no", "yes"], "gold": {}}})", i, i % 4 == 0 ? 0 : 1) + "\n";
  const Task task = load(folder_, "arc_easy", data);
  const auto result = run_task(*model_, task, {}, nullptr);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  ASSERT_EQ(result->records.size(), 40u);
  EXPECT_EQ(result->metrics[0].name, "acc");
  EXPECT_DOUBLE_EQ(result->metrics[0].value, 0.75);
  EXPECT_NEAR(result->metrics[0].standard_error, std::sqrt(0.75 * 0.25 * 40 / 39 / 40), 1e-12);
  const Json& record = result->records[1];
  EXPECT_EQ(record["choice"], 1);
  EXPECT_EQ(record["greedy"], Json({false, true}));
  EXPECT_EQ(record["tokens"], Json({3, 4}));
  EXPECT_NEAR(record["loglikelihoods"][1].get<double>(), 0, 1e-5);
}

TEST_F(TaskRuns, LastWord) {
  const Task task = load(folder_, "lambada",
                         R"({"text": "is it so: yes"})"
                         "\n"
                         R"({"text": "is it so: no"})");
  const auto result = run_task(*model_, task, {}, nullptr);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->metrics[0].name, "perplexity");
  const double likelihood = result->records[1]["loglikelihood"].get<double>();
  EXPECT_LT(likelihood, -15);
  EXPECT_NEAR(result->metrics[0].value, std::exp(-likelihood / 2), 1e-3 * result->metrics[0].value);
  EXPECT_DOUBLE_EQ(result->metrics[1].value, 0.5);
}

TEST_F(TaskRuns, AnOwnSetGenerates) {
  folder_.write("set.json", R"({"name": "mine", "kind": "generation", "prompt": "{a}:", "answer": "{b}",
                                "match": "exact", "max_tokens": 8})");
  folder_.write("set.jsonl", R"({"a": "is it", "b": "yes"})"
                             "\n"
                             R"({"a": "was it", "b": "no"})");
  const auto task = load_task(folder_.path() / "set.json", "", {});
  ASSERT_TRUE(task.has_value()) << task.error().message();
  const auto result = run_task(*model_, *task, {}, nullptr);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->records[0]["completion"], " yes");
  EXPECT_EQ(result->records[0]["finish_reason"], "stop");
  EXPECT_DOUBLE_EQ(result->metrics[0].value, 0.5);
  folder_.write("bad.json", R"({"name": "mine", "kind": "riddle", "prompt": ""})");
  EXPECT_FALSE(load_task(folder_.path() / "bad.json", "", {}).has_value());
  folder_.write("bad.json", R"({"name": "mine", "kind": "generation", "prompt": "{a", "surprise": 1})");
  EXPECT_NE(load_task(folder_.path() / "bad.json", "", {}).error().what.find("surprise"), std::string::npos);
}

// Cut at any byte, a log goes on to the same result, and what it holds is not measured again.
TEST_F(TaskRuns, ResumesFromALogCutAnywhere) {
  std::string data;
  for (int i = 0; i < 70; ++i)
    data += fmt::format(R"({{"query": "q{}", "choices": ["no", "yes"], "gold": {}}})", i, i % 2) + "\n";
  const Task task = load(folder_, "arc_easy", data);
  const Json identity = task_identity(*model_, task, {});
  const std::filesystem::path path = folder_.path() / "log.jsonl";
  std::vector<Json> expected;
  {
    auto log = ItemLog::open(path, identity);
    ASSERT_TRUE(log.has_value()) << log.error().message();
    expected = run_task(*model_, task, {}, &*log)->records;
    EXPECT_FALSE(ItemLog::open(path, identity).has_value());  // two runs on one file
  }
  const std::string whole = read_text_file(path).value();
  for (const size_t cut : {size_t{0}, size_t{5}, whole.size() / 3, whole.size() / 2, whole.size() - 1, whole.size()}) {
    ASSERT_TRUE(write_text_file(path, whole.substr(0, cut)).has_value());
    auto log = ItemLog::open(path, identity);
    ASSERT_TRUE(log.has_value()) << log.error().message();
    const auto lines =
        static_cast<int64_t>(std::count(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut), '\n'));
    const auto result = run_task(*model_, task, {}, &*log);
    ASSERT_TRUE(result.has_value()) << result.error().message();
    EXPECT_EQ(result->resumed, std::max<int64_t>(0, lines - 1)) << cut;
    EXPECT_EQ(result->records, expected) << cut;
  }
  Json other = identity;
  other["scheme"] = "fp8";
  const auto refused = ItemLog::open(path, other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().what.find("scheme"), std::string::npos);
  // A file of something else is left as it is.
  ASSERT_TRUE(write_text_file(path, "precious").has_value());
  EXPECT_FALSE(ItemLog::open(path, identity).has_value());
  EXPECT_EQ(read_text_file(path).value(), "precious");
}

}  // namespace
}  // namespace octavo
