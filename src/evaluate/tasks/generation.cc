// Generated answers: GSM8K ({"question", "answer"}) and HumanEval ({"task_id", "prompt"}).
#include <fmt/format.h>

#include "evaluate/tasks/fields.h"
#include "evaluate/tasks/rows.h"

namespace octavo {

Result<TaskItem> gsm8k_item(const Json& line, const std::string& where) {
  TaskItem item;
  OCTAVO_ASSIGN(const std::string question, text_field(line, "question", where));
  OCTAVO_ASSIGN(item.answer, text_field(line, "answer", where));
  if (item.answer.find("#### ") == std::string::npos)
    return fail({.what = "the answer has no \"#### NUMBER\"", .where = where, .found = item.answer});
  item.prompt = fmt::format("Question: {}\nAnswer:", question);
  item.id = id_field(line);
  return item;
}

Result<TaskItem> humaneval_item(const Json& line, const std::string& where) {
  TaskItem item;
  OCTAVO_ASSIGN(item.id, text_field(line, "task_id", where));
  OCTAVO_ASSIGN(item.prompt, text_field(line, "prompt", where));
  return item;
}

}  // namespace octavo
