// Multiple choice in the formats of ARC, PIQA and MMLU.
#include <fmt/format.h>

#include <algorithm>

#include "evaluate/tasks/fields.h"
#include "evaluate/tasks/rows.h"

namespace octavo {
namespace {

constexpr std::string_view kAnswer = "\nAnswer:";

// {"choices": {"text": [...], "label": [...]}, "answerKey": "C"}, as the hub has it.
Result<TaskItem> labelled_item(const Json& line, const std::string& where) {
  TaskItem item;
  const Json& choices = line["choices"];
  OCTAVO_ASSIGN(item.choices, texts_field(choices, "text", where + ", choices"));
  OCTAVO_ASSIGN(const std::vector<std::string> labels, texts_field(choices, "label", where + ", choices"));
  OCTAVO_ASSIGN(const std::string key, text_field(line, "answerKey", where));
  const auto found = std::find(labels.begin(), labels.end(), key);
  if (found == labels.end() || labels.size() != item.choices.size())
    return fail({.what = "\"answerKey\" is none of the labels", .where = where, .found = key});
  item.gold = found - labels.begin();
  return item;
}

}  // namespace

// {"question" or "query", "choices": [...], "gold": 2}, or the hub's form.
Result<TaskItem> arc_item(const Json& line, const std::string& where) {
  TaskItem item;
  if (has_field(line, "choices") && line["choices"].is_object()) {
    OCTAVO_ASSIGN(item, labelled_item(line, where));
  } else {
    OCTAVO_ASSIGN(item.choices, texts_field(line, "choices", where));
    OCTAVO_ASSIGN(item.gold, index_field(line, "gold", item.choices.size(), where));
  }
  item.id = id_field(line);
  if (has_field(line, "query")) {
    OCTAVO_ASSIGN(item.prompt, text_field(line, "query", where));
    if (!item.prompt.ends_with(kAnswer)) item.prompt += kAnswer;
    return item;
  }
  OCTAVO_ASSIGN(const std::string question, text_field(line, "question", where));
  item.prompt = fmt::format("Question: {}{}", question, kAnswer);
  return item;
}

// {"goal", "sol1", "sol2", "label": 0 or 1}
Result<TaskItem> piqa_item(const Json& line, const std::string& where) {
  TaskItem item;
  OCTAVO_ASSIGN(const std::string goal, text_field(line, "goal", where));
  OCTAVO_ASSIGN(std::string first, text_field(line, "sol1", where));
  OCTAVO_ASSIGN(std::string second, text_field(line, "sol2", where));
  item.prompt = fmt::format("Question: {}{}", goal, kAnswer);
  item.choices = {std::move(first), std::move(second)};
  OCTAVO_ASSIGN(item.gold, index_field(line, "label", 2, where));
  item.id = id_field(line);
  return item;
}

// {"question", "choices": four, "answer": 0 to 3, "subject"}; the choices scored are the letters.
Result<TaskItem> mmlu_item(const Json& line, const std::string& where) {
  TaskItem item;
  OCTAVO_ASSIGN(std::string question, text_field(line, "question", where));
  OCTAVO_ASSIGN(const std::vector<std::string> choices, texts_field(line, "choices", where));
  if (choices.size() != 4)
    return fail({.what = "MMLU has four choices", .where = where, .found = fmt::format("{}", choices.size())});
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = question.find_first_not_of(kSpace);
  question = begin == std::string::npos ? "" : question.substr(begin, question.find_last_not_of(kSpace) - begin + 1);
  if (has_field(line, "subject")) {
    OCTAVO_ASSIGN(std::string subject, text_field(line, "subject", where));
    std::replace(subject.begin(), subject.end(), '_', ' ');
    item.preamble = fmt::format("The following are multiple choice questions (with answers) about {}.\n\n", subject);
  }
  item.prompt = question;
  for (size_t i = 0; i < 4; ++i) item.prompt += fmt::format("\n{}. {}", "ABCD"[i], choices[i]);
  item.prompt += kAnswer;
  item.choices = {"A", "B", "C", "D"};
  OCTAVO_ASSIGN(item.gold, index_field(line, "answer", 4, where));
  item.id = id_field(line);
  return item;
}

}  // namespace octavo
