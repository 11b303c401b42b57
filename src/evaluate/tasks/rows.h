// What one line of each built-in task's data becomes.
#pragma once

#include "evaluate/tasks/task.h"

namespace octavo {

// multiple_choice.cc
Result<TaskItem> arc_item(const Json& line, const std::string& where);
Result<TaskItem> piqa_item(const Json& line, const std::string& where);
Result<TaskItem> mmlu_item(const Json& line, const std::string& where);
// last_word.cc
Result<TaskItem> lambada_item(const Json& line, const std::string& where);
// generation.cc
Result<TaskItem> gsm8k_item(const Json& line, const std::string& where);
Result<TaskItem> humaneval_item(const Json& line, const std::string& where);

// own_set.cc: the task that a JSON file describes, without its items; `data` gets the file it names, `lines` become
// items by item().
class OwnSet {
 public:
  static Result<OwnSet> read(const std::filesystem::path& path);
  const Task& settings() const { return settings_; }
  const std::filesystem::path& data() const { return data_; }
  Result<TaskItem> item(const Json& line, const std::string& where) const;

 private:
  Task settings_;
  std::filesystem::path data_;
  std::string prompt_, answer_, choices_field_, gold_;
  std::vector<std::string> choices_;
};

}  // namespace octavo
