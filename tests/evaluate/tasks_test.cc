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

TEST_F(TaskRuns, OwnSetsOfTheOtherKinds) {
  const auto run = [&](const std::string& set, const std::string& data) {
    folder_.write("set.json", set);
    folder_.write("set.jsonl", data);
    const auto task = load_task(folder_.path() / "set.json", "", {});
    if (!task) throw std::runtime_error(task.error().message());
    const auto result = run_task(*model_, *task, {}, nullptr);
    if (!result) throw std::runtime_error(result.error().message());
    return *result;
  };
  const TaskResult choice =
      run(R"({"name": "c", "kind": "multiple_choice", "prompt": "{q}:", "choices": "answers", "gold": "right"})",
          R"({"q": "is it", "answers": ["no", "yes"], "right": 1})"
          "\n"
          R"({"q": "was it", "answers": ["yes", "no"], "right": 1})");
  EXPECT_EQ(choice.metrics[0].name, "acc");
  EXPECT_DOUBLE_EQ(choice.metrics[0].value, 0.5);
  EXPECT_EQ(choice.records[0]["choice"], 1);
  const TaskResult fixed = run(
      R"({"name": "f", "kind": "multiple_choice", "prompt": "{q}:", "choices": ["yes", "{other}"], "gold": "right"})",
      R"({"q": "is it", "other": "so", "right": 0})");
  EXPECT_DOUBLE_EQ(fixed.metrics[0].value, 1);
  const TaskResult ending = run(R"({"name": "e", "kind": "continuation", "prompt": "{a}:", "answer": " {b}"})",
                                R"({"a": "is it", "b": "yes"})"
                                "\n"
                                R"({"a": "is it", "b": "no"})");
  EXPECT_EQ(ending.metrics[1].name, "acc");
  EXPECT_DOUBLE_EQ(ending.metrics[1].value, 0.5);
  const TaskResult contains = run(
      R"({"name": "h", "kind": "generation", "prompt": "{a}:", "answer": "{b}", "match": "contains", "max_tokens": 8})",
      R"({"a": "is it", "b": "es"})"
      "\n"
      R"({"a": "is it", "b": "No"})");
  EXPECT_EQ(contains.metrics[0].name, "contains");
  EXPECT_EQ(contains.records[0]["contains"], 1);
  EXPECT_EQ(contains.records[1]["contains"], 0);
}

TEST_F(TaskRuns, KeysOfAnotherKindAreErrors) {
  for (const auto& [kind, key] : {std::pair{"multiple_choice", R"("match": "exact")"},
                                  {"multiple_choice", R"("stop": ["x"])"},
                                  {"multiple_choice", R"("answer": "x")"},
                                  {"continuation", R"("chat": true)"},
                                  {"continuation", R"("max_tokens": 5)"},
                                  {"continuation", R"("gold": "x")"},
                                  {"generation", R"("choices": "x")"},
                                  {"generation", R"("delimiter": "")"},
                                  {"generation", R"("max_tokens": 0)"}}) {
    folder_.write("set.json", fmt::format(R"({{"name": "s", "kind": "{}", "prompt": "{{a}}", {}}})", kind, key));
    const auto task = load_task(folder_.path() / "set.json", "", {});
    ASSERT_FALSE(task.has_value()) << kind << key;
    const std::string named(key, std::string_view(key).find(':'));
    EXPECT_NE(task.error().what.find(named), std::string::npos) << task.error().message();
  }
}

// A model that answers as it was taught: GSM8K from the prompt to the metrics, and an own set with its match.
TEST(Gsm8k, IsAskedAnsweredAndJudged) {
  const ScriptModel script({{":", " It", " makes", " 1,0", "12", ".\n", "#### ", "10", "13", "\n", "Question:"}}, 512);
  const auto model = script.load("bf16");
  const TestFolder folder;
  const Task task = load(folder, "gsm8k",
                         R"({"question": "How many?", "answer": "so\n#### 1,013"})"
                         "\n"
                         R"({"question": "And now?", "answer": "#### 1012"})");
  const auto result = run_task(*model, task, {}, nullptr);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->records[0]["completion"], " It makes 1,012.\n#### 1013\n");
  EXPECT_EQ(result->records[0]["finish_reason"], "stop");  // by the harness' "Question:"
  EXPECT_EQ(result->records[0]["strict"], "1013");
  EXPECT_EQ(result->records[0]["exact_match_strict"], 1);
  EXPECT_EQ(result->records[1]["exact_match_flexible"], 0);
  EXPECT_EQ(result->metrics[0].name, "exact_match_strict");
  EXPECT_DOUBLE_EQ(result->metrics[0].value, 0.5);
  EXPECT_DOUBLE_EQ(result->metrics[1].value, 0.5);
  folder.write("own.json", R"({"name": "own", "kind": "generation", "prompt": "{q}:", "answer": "{a}", "match": "gsm8k",
                               "stop": ["\n#"]})");
  folder.write("own.jsonl", R"({"q": "How many", "a": 1012})");
  const auto own = load_task(folder.path() / "own.json", "", {});
  ASSERT_TRUE(own.has_value()) << own.error().message();
  const auto judged = run_task(*model, *own, {}, nullptr);
  EXPECT_EQ(judged->records[0]["strict"], "[invalid]");
  EXPECT_EQ(judged->records[0]["exact_match_flexible"], 1);
}

// Examples before a prompt are the same as a prompt that begins with them.
TEST(Tasks, ShotsStandBeforeEveryPrompt) {
  const TinyModelFolder model_folder("llama_untied_hd64");
  const auto model = load_test_model(model_folder.path(), "bf16");
  const TestFolder folder;
  const Task shots = load(folder, "arc_easy",
                          R"({"query": "Question: Hot?", "choices": ["ice", "fire"], "gold": 1})"
                          "\n"
                          R"({"query": "Question: Cold?", "choices": ["ice", "fire"], "gold": 0})",
                          {.limit = 1});
  ASSERT_EQ(shots.items.size(), 1u);
  Task task = load(folder, "arc_easy", R"({"query": "Question: Wet?", "choices": ["sea", "sand"], "gold": 0})");
  const auto plain = run_task(*model, task, {}, nullptr);
  const auto with = run_task(*model, task, {.examples = few_shot_examples(shots)}, nullptr);
  task.items[0].prompt = "Question: Hot?\nAnswer: fire\n\n" + task.items[0].prompt;
  const auto spelled_out = run_task(*model, task, {}, nullptr);
  ASSERT_TRUE(plain && with && spelled_out);
  EXPECT_EQ(with->records, spelled_out->records);
  EXPECT_NE(with->records, plain->records);
}

TEST_F(TaskRuns, PromptsThatAreTooLongAreCounted) {
  folder_.write("set.json", R"({"name": "mine", "kind": "generation", "prompt": "{a}:", "answer": "yes",
                                "match": "exact", "max_tokens": 100})");
  folder_.write("set.jsonl",
                fmt::format("{{\"a\": \"{}\"}}\n{{\"a\": \"{}\"}}", std::string(155, 'q'), std::string(156, 'q')));
  auto task = load_task(folder_.path() / "set.json", "", {});
  ASSERT_TRUE(task.has_value()) << task.error().message();
  auto log = ItemLog::open(folder_.path() / "log.jsonl", {{"a", 1}});
  const auto result = run_task(*model_, *task, {}, &*log);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->truncated, 1);  // 156 + 1 + 100 of 256
  EXPECT_FALSE(result->records[0].contains("truncated"));
  EXPECT_EQ(result->records[1]["truncated"], 1);
  EXPECT_EQ(result->errors, 0);
  // An answer as long as the context leaves no room for any prompt.
  task->max_tokens = 256;
  const auto refused = run_task(*model_, *task, {}, nullptr);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().where.find("max_tokens"), std::string::npos);
  const Task long_item = load(folder_, "lambada", fmt::format("{{\"text\": \"{} yes\"}}", std::string(300, 'q')));
  EXPECT_EQ(run_task(*model_, long_item, {}, nullptr)->truncated, 1);
}

// A prompt that the engine refuses is wrong, and said to be refused.
TEST_F(TaskRuns, RefusedPromptsAreCounted) {
  folder_.write("set.json",
                R"({"name": "mine", "kind": "generation", "prompt": "{a}", "answer": "yes", "match": "exact"})");
  folder_.write("set.jsonl", "{\"a\": \"\"}\n{\"a\": \"x:\"}");
  const auto task = load_task(folder_.path() / "set.json", "", {});
  ASSERT_TRUE(task.has_value()) << task.error().message();
  Task short_answers = *task;
  short_answers.max_tokens = 8;
  const auto result = run_task(*model_, short_answers, {}, nullptr);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->errors, 1);
  EXPECT_DOUBLE_EQ(result->metrics[0].value, 0.5);
}

TEST_F(TaskRuns, TheLogIsOfOneModelTaskAndProgram) {
  Task task = load(folder_, "lambada", R"({"text": "is it so: yes"})");
  const auto differs = [&](const Task& other, const TaskOptions& options) {
    return task_identity(*model_, other, options) != task_identity(*model_, task, {.version = "1"});
  };
  EXPECT_FALSE(differs(task, {.version = "1"}));
  EXPECT_TRUE(differs(task, {.version = "2"}));
  Task other = task;
  other.match = AnswerMatch::kContains;
  EXPECT_TRUE(differs(other, {.version = "1"}));
  other = task;
  other.kind = TaskKind::kGeneration;
  EXPECT_TRUE(differs(other, {.version = "1"}));
  // The same path with other weights.
  const Json before = task_identity(*model_, task, {});
  std::filesystem::last_write_time(script_.path() / "model.safetensors", std::filesystem::file_time_type::clock::now());
  EXPECT_NE(task_identity(*model_, task, {}), before);
}

// A path need not be UTF-8.
TEST_F(TaskRuns, ALogsIdentityMayHoldAnyBytes) {
  const Json identity = {{"model", "caf\xe9"}, {"n", 1}};
  const std::filesystem::path path = folder_.path() / "log.jsonl";
  ASSERT_TRUE(ItemLog::open(path, identity).has_value());
  EXPECT_TRUE(ItemLog::open(path, identity).has_value());
  const auto other = ItemLog::open(path, {{"model", "th\xe9"}, {"n", 1}});
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().what.find("model"), std::string::npos);
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
