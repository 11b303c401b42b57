// The last word of a passage, in the format of LAMBADA: {"text"}.
#include "evaluate/tasks/fields.h"
#include "evaluate/tasks/rows.h"

namespace octavo {

Result<TaskItem> lambada_item(const Json& line, const std::string& where) {
  TaskItem item;
  OCTAVO_ASSIGN(const std::string text, text_field(line, "text", where));
  const size_t space = text.rfind(' ');
  if (space == std::string::npos || space + 1 == text.size())
    return fail({.what = "the passage does not end in a word after a space", .where = where, .found = text});
  item.prompt = text.substr(0, space);
  item.answer = text.substr(space);
  item.id = id_field(line);
  return item;
}

}  // namespace octavo
