// ToolCallReader: finds the function calls in what a model writes: <tool_call>{...}</tool_call> (Hermes, Qwen), or an
// answer that is nothing but JSON with "name" and "parameters" (Llama 3.1). Text that is no call stays text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octavo {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text
};

class ToolCallReader {
 public:
  // `one`: calls after the first are dropped.
  ToolCallReader(std::vector<std::string> names, bool one) : names_(std::move(names)), one_(one) {}

  // The part of the text so far that is certain to be no call.
  std::string push(std::string_view text);
  // What was held back and turned out to be no call.
  std::string finish();
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  enum class Mode { kStart, kText, kTagged, kBare };
  bool read_call(std::string_view json);
  std::string scan();

  std::vector<std::string> names_;
  bool one_;
  std::vector<ToolCall> calls_;
  std::string held_;
  Mode mode_ = Mode::kStart;
};

}  // namespace octavo
