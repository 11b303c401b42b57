#include "evaluate/tasks/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/file.h"
#include "base/random.h"
#include "evaluate/tasks/rows.h"

namespace octavo {

const std::vector<BuiltInTask>& built_in_tasks() {
  static const std::vector<BuiltInTask> kTasks = {
      {"arc_easy", "grade-school science, 3 to 5 choices", {.kind = TaskKind::kMultipleChoice}, arc_item},
      {"piqa", "everyday physics, two choices", {.kind = TaskKind::kMultipleChoice}, piqa_item},
      {"mmlu", "57 subjects, the letter of one of four", {.kind = TaskKind::kMultipleChoice}, mmlu_item},
      {"lambada", "the last word of a passage", {.kind = TaskKind::kContinuation}, lambada_item},
      {"gsm8k",
       "grade-school mathematics, the number at the end",
       {.kind = TaskKind::kGeneration,
        .match = AnswerMatch::kGsm8k,
        .chat = true,
        .chat_request = "\nThink step by step and end with a line \"#### NUMBER\".",
        .stop = {"Question:", "</s>", "<|im_end|>"},
        .max_tokens = 256},
       gsm8k_item},
      {"humaneval",
       "Python functions to complete; written down, not executed",
       {.kind = TaskKind::kGeneration, .stop = {"\nclass", "\ndef", "\n#", "\nif", "\nprint"}, .max_tokens = 512},
       humaneval_item},
  };
  return kTasks;
}

std::string few_shot_examples(const Task& task) {
  std::string text;
  for (const TaskItem& item : task.items) {
    text += item.prompt;
    if (task.kind == TaskKind::kMultipleChoice) text += task.delimiter + item.choices[static_cast<size_t>(item.gold)];
    if (task.kind == TaskKind::kContinuation) text += item.answer;
    if (task.kind == TaskKind::kGeneration) text += " " + item.answer;
    text += "\n\n";
  }
  return text;
}

namespace {

Result<std::vector<Json>> parse_lines(std::string_view text, const std::filesystem::path& path) {
  if (text.starts_with("\x1F\x8B"))
    return fail({.what = "the file is compressed", .where = path.string(), .remedy = "unpack it with gunzip first"});
  std::vector<Json> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}, line {}", path.string(), number);
    OCTAVO_ASSIGN(Json value, parse_json(line, where));
    if (!value.is_object())
      return fail({.what = "a line is not a JSON object", .where = where, .found = value.type_name()});
    lines.push_back(std::move(value));
  }
  if (lines.empty()) return fail({.what = "the data has no items", .where = path.string()});
  return lines;
}

}  // namespace

Result<std::vector<Json>> read_jsonl(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const std::string text, read_text_file(path));
  return parse_lines(text, path);
}

namespace {

// The first `limit`, or a sample that keeps the order of the data.
std::vector<size_t> select(size_t count, const TaskSelection& selection) {
  std::vector<size_t> picked(count);
  std::iota(picked.begin(), picked.end(), size_t{0});
  const size_t limit = selection.limit > 0 ? std::min(count, static_cast<size_t>(selection.limit)) : count;
  if (selection.seed != 0) {
    Random random(selection.seed);
    for (size_t i = 0; i < limit; ++i) std::swap(picked[i], picked[i + random.below(count - i)]);
  }
  picked.resize(limit);
  std::sort(picked.begin(), picked.end());
  return picked;
}

template <class MakeItem>
Result<Task> fill(Task task, const std::filesystem::path& data, const TaskSelection& selection, MakeItem&& make_item) {
  OCTAVO_ASSIGN(const std::vector<Json> lines, read_jsonl(data));
  for (const size_t i : select(lines.size(), selection)) {
    OCTAVO_ASSIGN(TaskItem item, make_item(lines[i], fmt::format("{}, item {}", data.string(), i)));
    if (item.id.empty()) item.id = fmt::format("{}", i);
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace

Result<Task> load_task(const std::string& name, const std::filesystem::path& data, const TaskSelection& selection) {
  if (selection.limit < 0)
    return fail({.what = "the number of items is negative",
                 .where = "--limit",
                 .found = fmt::format("{}", selection.limit),
                 .expected = "0 (all), or more"});
  std::string names;
  for (const BuiltInTask& row : built_in_tasks()) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    if (row.name != name) continue;
    if (data.empty())
      return fail({.what = "a built-in task needs its data", .where = "--data", .expected = "a JSONL file"});
    Task task = row.settings;
    task.name = name;
    return fill(std::move(task), data, selection, row.item);
  }
  if (!name.ends_with(".json"))
    return fail({.what = "unknown task",
                 .where = "--task",
                 .found = fmt::format("'{}'", name),
                 .expected = fmt::format("one of {}, or the .json file of a set of your own", names)});
  OCTAVO_ASSIGN(const OwnSet own, OwnSet::read(name));
  return fill(own.settings(), data.empty() ? own.data() : data, selection,
              [&](const Json& line, const std::string& where) { return own.item(line, where); });
}

}  // namespace octavo
