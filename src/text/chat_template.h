// Chat templates: an interpreter for the Jinja subset that model hubs use, byte for byte what jinja2 gives with
// trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace octavo {

struct TemplateLimits {
  size_t max_output = size_t{16} << 20;  // bytes
  size_t max_steps = 20'000'000;         // interpreter steps: bounds endless loops
  int max_depth = 200;                   // macro and expression nesting
};

class ChatTemplate {
 public:
  // Parses; an error names line and column.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view where);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `variables` is an object: messages, tools, add_generation_prompt, bos_token, eos_token, and any other keyword.
  // raise_exception(text) becomes an error whose `what` is that text. `now` feeds strftime_now (seconds since the
  // epoch).
  Result<std::string> render(const Json& variables, TemplateLimits limits = {}, int64_t now = -1) const;

 private:
  ChatTemplate();
  struct State;
  std::unique_ptr<State> state_;
};

// What a model folder (chat_template.jinja first, then tokenizer_config.json) or a .gguf file says about chatting.
struct ChatFormat {
  std::string template_source;  // empty: the model has none
  std::string bos_token, eos_token, pad_token, unk_token;
};
Result<ChatFormat> read_chat_format(const std::filesystem::path& model);

}  // namespace octavo
