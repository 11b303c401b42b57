// A set of one's own: what the JSON file says, and what it makes of a data line.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "evaluate/tasks/fields.h"
#include "evaluate/tasks/rows.h"

namespace octavo {
namespace {

template <class T>
struct Name {
  std::string_view name;
  T value;
};
constexpr std::array kKinds = {Name<TaskKind>{"multiple_choice", TaskKind::kMultipleChoice},
                               Name<TaskKind>{"continuation", TaskKind::kContinuation},
                               Name<TaskKind>{"generation", TaskKind::kGeneration}};
constexpr std::array kMatches = {
    Name<AnswerMatch>{"none", AnswerMatch::kNone}, Name<AnswerMatch>{"exact", AnswerMatch::kExact},
    Name<AnswerMatch>{"contains", AnswerMatch::kContains}, Name<AnswerMatch>{"gsm8k", AnswerMatch::kGsm8k}};

template <class T, size_t N>
Result<T> by_name(const std::array<Name<T>, N>& names, std::string_view key, const std::string& value,
                  const std::string& where) {
  std::string known;
  for (const auto& row : names) {
    if (row.name == value) return row.value;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return fail(
      {.what = fmt::format("unknown \"{}\"", key), .where = where, .found = value, .expected = "one of " + known});
}

// Keys, and the kinds in which they mean something.
struct Key {
  std::string_view name;
  bool multiple_choice, continuation, generation;

  bool in(TaskKind kind) const {
    return kind == TaskKind::kMultipleChoice ? multiple_choice
           : kind == TaskKind::kContinuation ? continuation
                                             : generation;
  }
};
constexpr Key kKeys[] = {
    {"name", true, true, true},        {"kind", true, true, true},      {"data", true, true, true},
    {"prompt", true, true, true},      {"choices", true, false, false}, {"gold", true, false, false},
    {"delimiter", true, false, false}, {"answer", false, true, true},   {"match", false, false, true},
    {"chat", false, false, true},      {"stop", false, false, true},    {"max_tokens", false, false, true}};

Result<void> check_keys(const Json& file, TaskKind kind, const std::string& kind_name, const std::string& where) {
  for (const auto& [key, value] : file.items()) {
    const std::string_view name = key;
    const auto known = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) { return k.name == name; });
    if (known == std::end(kKeys)) return fail({.what = fmt::format("unknown key \"{}\"", name), .where = where});
    if (!known->in(kind))
      return fail({.what = fmt::format("key \"{}\" means nothing in a set of kind \"{}\"", name, kind_name),
                   .where = where,
                   .remedy = "leave it out"});
  }
  return {};
}

Result<void> read_generation(const Json& file, const std::string& where, Task& task) {
  if (has_field(file, "stop")) {
    OCTAVO_ASSIGN(task.stop, texts_field(file, "stop", where));
  }
  if (has_field(file, "max_tokens")) {
    OCTAVO_ASSIGN(task.max_tokens, index_field(file, "max_tokens", size_t{1} << 20, where));
    if (task.max_tokens == 0)
      return fail(
          {.what = "field \"max_tokens\" is out of range", .where = where, .found = "0", .expected = "1 or more"});
  }
  if (has_field(file, "chat")) {
    if (!file["chat"].is_boolean()) return fail({.what = "\"chat\" is not true or false", .where = where});
    task.chat = file["chat"].get<bool>();
  }
  if (has_field(file, "match")) {
    OCTAVO_ASSIGN(const std::string match, text_field(file, "match", where));
    OCTAVO_ASSIGN(task.match, by_name(kMatches, "match", match, where));
  }
  return {};
}

}  // namespace

Result<OwnSet> OwnSet::read(const std::filesystem::path& path) {
  const std::string where = path.string();
  OCTAVO_ASSIGN(const std::string text, read_text_file(path));
  OCTAVO_ASSIGN(const Json file, parse_json(text, where));
  if (!file.is_object()) return fail({.what = "not a JSON object", .where = where});
  OwnSet set;
  Task& task = set.settings_;
  OCTAVO_ASSIGN(task.name, text_field(file, "name", where));
  OCTAVO_ASSIGN(const std::string kind, text_field(file, "kind", where));
  OCTAVO_ASSIGN(task.kind, by_name(kKinds, "kind", kind, where));
  OCTAVO_TRY(check_keys(file, task.kind, kind, where));
  OCTAVO_ASSIGN(set.prompt_, text_field(file, "prompt", where));
  if (has_field(file, "data")) {
    OCTAVO_ASSIGN(const std::string data, text_field(file, "data", where));
    set.data_ = path.parent_path() / data;
  } else {
    set.data_ = path.parent_path() / (path.stem().string() + ".jsonl");
  }
  if (has_field(file, "delimiter")) {
    OCTAVO_ASSIGN(task.delimiter, text_field(file, "delimiter", where));
  }
  OCTAVO_TRY(read_generation(file, where, task));
  if (task.kind == TaskKind::kMultipleChoice) {
    OCTAVO_ASSIGN(set.gold_, text_field(file, "gold", where));
    if (has_field(file, "choices") && file["choices"].is_array()) {
      OCTAVO_ASSIGN(set.choices_, texts_field(file, "choices", where));
    } else {
      OCTAVO_ASSIGN(set.choices_field_, text_field(file, "choices", where));
    }
  } else if (task.kind == TaskKind::kContinuation || task.match != AnswerMatch::kNone || has_field(file, "answer")) {
    OCTAVO_ASSIGN(set.answer_, text_field(file, "answer", where));
  }
  return set;
}

Result<TaskItem> OwnSet::item(const Json& line, const std::string& where) const {
  TaskItem item{.id = id_field(line)};
  OCTAVO_ASSIGN(item.prompt, fill_template(prompt_, line, where));
  OCTAVO_ASSIGN(item.answer, fill_template(answer_, line, where));
  if (settings_.kind != TaskKind::kMultipleChoice) return item;
  if (choices_.empty()) {
    OCTAVO_ASSIGN(item.choices, texts_field(line, choices_field_, where));
  }
  for (const std::string& choice : choices_) {
    OCTAVO_ASSIGN(std::string filled, fill_template(choice, line, where));
    item.choices.push_back(std::move(filled));
  }
  OCTAVO_ASSIGN(item.gold, index_field(line, gold_, item.choices.size(), where));
  return item;
}

}  // namespace octavo
