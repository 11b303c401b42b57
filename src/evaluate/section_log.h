// SectionLog: the finished parts of a long measurement by name, in a file that a run which was killed goes on with.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "evaluate/item_log.h"

namespace octavo {

class SectionLog {
 public:
  // As ItemLog::open().
  static Result<SectionLog> open(const std::filesystem::path& path, const Json& identity);

  // What the log has of a section; null where it has nothing.
  const Json* find(const std::string& name) const;
  Result<void> keep(const std::string& name, const Json& result);
  // The error of a section that cannot be one of this run.
  Error refuse(const std::string& name);
  const std::optional<Error>& failure() const { return log_.failure(); }

 private:
  explicit SectionLog(ItemLog log) : log_(std::move(log)) {}
  ItemLog log_;
  std::map<std::string, Json> done_;
};

// What the log has of a section, or what `measure` gives, which is then kept. Without a log it is measured. Error: the
// measurement's; the log's, which is then its failure().
template <class Measure>
Result<Json> section(SectionLog* log, const std::string& name, Measure&& measure) {
  if (log == nullptr) return measure();
  if (const Json* found = log->find(name)) return *found;
  OCTAVO_ASSIGN(Json result, measure());
  OCTAVO_TRY(log->keep(name, result));
  return result;
}

}  // namespace octavo
