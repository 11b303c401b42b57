#include "evaluate/section_log.h"

namespace octavo {

Result<SectionLog> SectionLog::open(const std::filesystem::path& path, const Json& identity) {
  OCTAVO_ASSIGN(ItemLog log, ItemLog::open(path, identity));
  SectionLog sections(std::move(log));
  for (const Json& record : sections.log_.done())
    if (record.is_object() && record.contains("section") && record["section"].is_string())
      sections.done_[record["section"].get<std::string>()] = record.value("result", Json());
  return sections;
}

const Json* SectionLog::find(const std::string& name) const {
  const auto found = done_.find(name);
  return found == done_.end() ? nullptr : &found->second;
}

Result<void> SectionLog::keep(const std::string& name, const Json& result) {
  return log_.append({{{"section", name}, {"result", result}}});
}

Error SectionLog::refuse(const std::string& name) {
  const Json* found = find(name);
  return log_.refuse({{"section", name}, {"result", found == nullptr ? Json() : *found}});
}

}  // namespace octavo
