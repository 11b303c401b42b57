// What the chat template fuzzer does with an input: the first byte chooses the variables, the rest is a template, which
// is rendered under small limits.
#pragma once

#include <string_view>

#include "base/json.h"
#include "text/chat_template.h"

namespace octavo {

inline const Json& fuzz_chat_variables(unsigned char choice) {
  static const Json kChoices[] = {
      {{"messages",
        {{{"role", "system"}, {"content", "Be brief."}},
         {{"role", "user"}, {"content", "Hi \xE6\x97\xA5 <think>a</think>"}},
         {{"role", "assistant"},
          {"content", nullptr},
          {"tool_calls", {{{"id", "x"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1.5}, {"b", {true}}}}}}}}}},
         {{"role", "tool"}, {"content", {{{"type", "text"}, {"text", "r"}}}}}}},
       {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}}},
       {"add_generation_prompt", true},
       {"bos_token", "<s>"},
       {"eos_token", "</s>"}},
      {{"a", 1},
       {"b", -2.5},
       {"s", "some text\n"},
       {"l", {3, 1, 2, "x", nullptr}},
       {"d", {{"k", "v"}, {"items", 1}}},
       {"t", true},
       {"z", nullptr},
       {"u", 18446744073709551615u}},
      Json::object(),
  };
  return kChoices[choice % 3];
}

inline void fuzz_chat_template(std::string_view input) {
  if (input.empty()) return;
  const auto parsed = ChatTemplate::parse(input.substr(1), "fuzz");
  if (!parsed) return;
  TemplateLimits limits;
  limits.max_output = 1 << 16;
  limits.max_steps = 20'000;
  const auto text = parsed->render(fuzz_chat_variables(static_cast<unsigned char>(input[0])), limits, 0);
  if (text && text->size() > limits.max_output) __builtin_trap();
}

}  // namespace octavo
