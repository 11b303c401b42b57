// What both halves of the parser share: the tokens, a guard against deep nesting, and error messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace octavo::jinja {

inline constexpr int kMaxSyntaxDepth = 200;      // brackets and blocks within each other
inline constexpr int kMaxExpressionDepth = 500;  // also chains: a + b + c, a.b.c, a | b | c

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[index_]; }
  const Token& look() const { return tokens_[std::min(index_ + 1, tokens_.size() - 1)]; }
  const Token& next();  // steps forward; returns what was current
  bool at(TokenType type) const { return current().type == type; }
  bool at_operator(std::string_view spelling) const { return current().is_operator(spelling); }
  bool at_name(std::string_view name) const { return current().is_name(name); }
  bool skip_operator(std::string_view spelling);
  bool skip_name(std::string_view name);
  const Token& expect(TokenType type, std::string_view description);
  void expect_operator(std::string_view spelling);
  void expect_name(std::string_view name);

  [[noreturn]] void fail(std::string what) const { fail_at(current().position, std::move(what)); }
  [[noreturn]] static void fail_at(size_t position, std::string what);
  [[noreturn]] void fail_expected(std::string_view description) const;

 private:
  std::vector<Token> tokens_;
  size_t index_ = 0;
};

// Counts how deep the parser recurses.
class DepthGuard {
 public:
  DepthGuard(int* depth, const TokenStream& tokens);
  ~DepthGuard() { --*depth_; }

 private:
  int* depth_;
};

}  // namespace octavo::jinja
