// Tasks: sets of questions with a right answer. A built-in task is a row of the list in task.cc; a set of one's own is
// described by a small JSON file (docs/evaluate.md).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace octavo {

enum class TaskKind : uint8_t {
  kMultipleChoice,  // the likeliest of several continuations
  kContinuation,    // the likelihood of the one right continuation (LAMBADA: the last word)
  kGeneration,      // a greedy answer, compared with the right one or only written down
};

// How a generated answer is judged.
enum class AnswerMatch : uint8_t {
  kNone,      // not at all: the answers are written down
  kExact,     // equal but for white space around it
  kContains,  // the right answer occurs in it
  kGsm8k,     // the number after "####" (strict), the last number (flexible)
};

struct TaskItem {
  std::string id;
  std::string preamble;  // stands once before examples and prompt
  std::string prompt;
  std::vector<std::string> choices;  // kMultipleChoice
  int64_t gold = -1;                 // kMultipleChoice: index of the right one
  std::string answer;                // kContinuation: the text scored after the prompt; kGeneration: the right answer
};

struct Task {
  std::string name;
  TaskKind kind = TaskKind::kMultipleChoice;
  std::string delimiter = " ";  // kMultipleChoice: between the prompt and a choice
  // kGeneration
  AnswerMatch match = AnswerMatch::kNone;
  bool chat = false;         // the prompt is a user's message under the model's chat template
  std::string chat_request;  // added to the prompt where it is a message
  std::vector<std::string> stop;
  int64_t max_tokens = 256;
  std::vector<TaskItem> items;
};

// A row of the list.
struct BuiltInTask {
  std::string_view name, summary;
  Task settings;
  // One line of the data; `where` names it in errors.
  Result<TaskItem> (*item)(const Json& line, const std::string& where);
};
const std::vector<BuiltInTask>& built_in_tasks();

struct TaskSelection {
  int64_t limit = 0;  // items; 0: all
  uint64_t seed = 0;  // 0: the first ones, in order; else a sample that depends on the seed alone
};

// `name`: a built-in task, whose items are the lines of `data` (JSONL), or the JSON file of a set of one's own.
Result<Task> load_task(const std::string& name, const std::filesystem::path& data, const TaskSelection& selection);

// The items of `task` as solved examples before a question: prompt, delimiter, right answer, an empty line.
std::string few_shot_examples(const Task& task);

// Lines of a JSONL file; blank ones are skipped. Error: not JSON (names the line), not an object, gzip, no line.
Result<std::vector<Json>> read_jsonl(const std::filesystem::path& path);

}  // namespace octavo
