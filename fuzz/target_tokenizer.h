// What the tokenizer fuzzer does with a tokenizer.json from nowhere: loading it, and using what loads, must end well.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace octavo {

inline void fuzz_tokenizer(std::string_view file) {
  const auto tokenizer = Tokenizer::from_json(file, "fuzz");
  if (!tokenizer) {
    if (tokenizer.error().what.empty()) __builtin_trap();
    return;
  }
  // A text that has to do with the tokenizer: the file's own bytes, beside fixed ones.
  std::string text = "Hello, world! 12345 \xE4\xBD\xA0 e\xCC\x81 \xF0\x9F\x8C\xB6 \xFF\xC3  \n\n\tx <|im_start|> ab";
  text += file.substr(0, 256);
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer->encode(text, true, parse_special);
    StreamDecoder stream(*tokenizer, parse_special);
    std::string streamed;
    for (const TokenId id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= tokenizer->vocab_size()) __builtin_trap();
      streamed += stream.push(id);
    }
    streamed += stream.finish();
    if (streamed != tokenizer->decode(ids, parse_special)) __builtin_trap();
  }
  const auto again = Tokenizer::from_json(tokenizer->to_json(), "written");
  if (!again || again->encode(text, true) != tokenizer->encode(text, true)) __builtin_trap();
}

}  // namespace octavo
