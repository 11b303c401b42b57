#include "checkpoint/module_list.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "checkpoint/dialect_rules.h"

namespace octavo {
namespace {

bool covers_path(std::string_view entry, std::string_view name) {
  if (entry.empty()) return false;
  for (size_t at = name.find(entry); at != std::string_view::npos; at = name.find(entry, at + 1)) {
    const bool starts = at == 0 || name[at - 1] == '.';
    const size_t end = at + entry.size();
    if (starts && (end == name.size() || name[end] == '.')) return true;
  }
  return entry.starts_with("model.") && covers_path(entry.substr(6), name) && !name.starts_with("model.");
}

// The whole name or a parent of it.
bool covers_wildcard(const std::string& entry, std::string_view name) {
  for (size_t end = name.size(); end != std::string_view::npos; end = end == 0 ? end : name.rfind('.', end - 1)) {
    if (fnmatch(entry.c_str(), std::string(name.substr(0, end)).c_str(), 0) == 0) return true;
    if (end == 0) break;
  }
  return false;
}

bool covers_text(const std::string& entry, std::string_view name) {
  if (entry.find_first_of("*?") != std::string::npos) return covers_wildcard(entry, name);
  if (covers_path(entry, name)) return true;
  struct Fused {
    std::string_view fused;
    std::initializer_list<std::string_view> parts;
  };
  for (const Fused& f :
       {Fused{"qkv_proj", {"q_proj", "k_proj", "v_proj"}}, Fused{"gate_up_proj", {"gate_proj", "up_proj"}}}) {
    if (!entry.ends_with(f.fused)) continue;
    const std::string stem = entry.substr(0, entry.size() - f.fused.size());
    for (const std::string_view part : f.parts)
      if (covers_path(stem + std::string(part), name)) return true;
  }
  return false;
}

}  // namespace

Result<ModuleList> ModuleList::read(const Json& config, std::initializer_list<std::string_view> keys,
                                    std::string_view path) {
  ModuleList list;
  for (const std::string_view key : keys) {
    OCTAVO_ASSIGN(const auto texts, json_texts(config, key, path));
    for (const std::string& text : texts) {
      const auto same = [&](const Entry& entry) { return entry.text == text; };
      if (std::any_of(list.entries_.begin(), list.entries_.end(), same)) continue;
      Entry entry{text, std::nullopt};
      if (text.starts_with("re:")) {
        OCTAVO_ASSIGN(entry.pattern, NameRule::parse(text));
      }
      list.entries_.push_back(std::move(entry));
    }
  }
  return list;
}

Result<bool> ModuleList::covers(const Entry& entry, std::string_view name) {
  if (entry.pattern) return entry.pattern->matches(name);
  return covers_text(entry.text, name);
}

Result<const std::string*> ModuleList::find(std::string_view module) {
  const std::string* found = nullptr;
  for (Entry& entry : entries_) {
    OCTAVO_ASSIGN(const bool hit, covers(entry, module));
    if (!hit) continue;
    entry.hit = true;
    if (found == nullptr) found = &entry.text;
  }
  return found;
}

void ModuleList::note_unused(const TensorReader& tensors, std::vector<std::string>& notes) const {
  for (const Entry& entry : entries_)
    if (!entry.hit &&
        !covers_some_tensor(tensors, [&](std::string_view name) { return covers(entry, name).value_or(false); }))
      notes.push_back(
          fmt::format("quantization_config: '{}' among the modules not to convert matches no module", entry.text));
}

}  // namespace octavo
