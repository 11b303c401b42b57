#include "server/openai/tool_calls.h"

#include <algorithm>
#include <utility>

#include "server/openai/json_text.h"

namespace octavo {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Length of the longest end of `text` that begins `marker`.
size_t partial_end(std::string_view text, std::string_view marker) {
  for (size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size)
    if (text.ends_with(marker.substr(0, size))) return size;
  return 0;
}

}  // namespace

bool ToolCallReader::read_call(std::string_view json) {
  const Result<Json> call = parse_json(trimmed(json), "tool call");
  if (!call || !call->is_object()) return false;
  const auto name = call->find("name");
  if (name == call->end() || !name->is_string()) return false;
  if (std::find(names_.begin(), names_.end(), name->get<std::string>()) == names_.end()) return false;
  auto arguments = call->find("arguments");
  if (arguments == call->end()) arguments = call->find("parameters");
  std::string text = "{}";
  if (arguments != call->end()) text = arguments->is_string() ? arguments->get<std::string>() : to_text(*arguments);
  if (one_ && !calls_.empty()) return true;
  calls_.push_back({name->get<std::string>(), std::move(text)});
  return true;
}

std::string ToolCallReader::push(std::string_view text) {
  held_ += text;
  return scan();
}

std::string ToolCallReader::scan() {
  std::string out;
  if (mode_ == Mode::kStart) {
    const size_t first = held_.find_first_not_of(kBlanks);
    if (first == std::string::npos) return out;
    mode_ = held_[first] == '{' ? Mode::kBare : Mode::kText;
  }
  while (mode_ != Mode::kBare) {
    if (mode_ == Mode::kText) {
      const size_t open = held_.find(kOpen);
      if (open == std::string::npos) {
        // Blanks before a call are no content, so they wait too.
        size_t keep = partial_end(held_, kOpen);
        while (keep < held_.size() && kBlanks.find(held_[held_.size() - keep - 1]) != std::string_view::npos) ++keep;
        out += held_.substr(0, held_.size() - keep);
        held_.erase(0, held_.size() - keep);
        return out;
      }
      const std::string before = held_.substr(0, open);
      out += before.substr(0, before.find_last_not_of(kBlanks) + 1);
      held_.erase(0, open);
      mode_ = Mode::kTagged;
    }
    const size_t close = held_.find(kClose);
    if (close == std::string::npos) return out;
    if (!read_call(std::string_view(held_).substr(kOpen.size(), close - kOpen.size())))
      out += held_.substr(0, close + kClose.size());
    held_.erase(0, close + kClose.size());
    mode_ = Mode::kText;
  }
  return out;
}

std::string ToolCallReader::finish() {
  std::string rest = std::exchange(held_, {});
  if (mode_ == Mode::kBare && read_call(rest)) return {};
  if (mode_ == Mode::kTagged && read_call(std::string_view(rest).substr(kOpen.size()))) return {};
  if (!calls_.empty() && trimmed(rest).empty()) return {};
  return rest;
}

}  // namespace octavo
