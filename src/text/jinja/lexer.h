// Splits a template into tokens, with jinja2's whitespace rules for trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::jinja {

enum class TokenType : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;     // data, name, operator, decoded string
  size_t position = 0;  // byte offset in the template
  int64_t integer = 0;
  double real = 0;

  bool is_operator(std::string_view spelling) const { return type == TokenType::kOperator && text == spelling; }
  bool is_name(std::string_view name) const { return type == TokenType::kName && text == name; }
};

// "\r\n" and "\r" become "\n", and one newline at the end goes away.
std::string normalize_newlines(std::string_view source, bool drop_last);

// `source` is normalized, valid UTF-8. Throws Failure. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

// How jinja2 names a token in its messages.
std::string describe(const Token& token);

}  // namespace octavo::jinja
